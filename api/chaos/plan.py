"""Which faults a seed yields, in which order, and how long each lasts.

Invariant: the plan depends only on the seed and the minutes, also on another machine and another Python version, so
that a failed seed can be repeated. The timing within the product is not part of it: it depends on the machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum, unique
from itertools import count
from typing import Any


@unique
class Kind(StrEnum):
    """What is done to the target."""

    KILL = "kill"  # SIGKILL; at the end a server is restarted by the run, a role by its supervisor
    STOP = "stop"  # SIGSTOP, then SIGCONT
    CUT = "cut"  # connections are reset, and new ones too
    SLOW = "slow"  # everything is delayed
    HALF_OPEN = "half-open"  # connections stay open but transmit nothing; at the end they are reset
    LATE = "late-writes"  # data that clients sent arrives at the end, also from clients that have disconnected
    TERMINATE = "terminate"  # PostgreSQL ends every connection, several times
    CLOCK = "clock"  # a role's clock is wrong
    REBALANCE = "rebalance"  # a second process of the role joins and is killed
    REWIND = "deliver-again"  # the sinks are killed, and one of them is set back some records in every partition
    FORGET = "forget-state"  # the worker is killed and its local tables are deleted
    LOSE = "lose-changelogs"  # as before, and the changelog records are deleted too; then recover-tables
    FULL = "full-disk"  # files cannot grow: each write beyond the first block fails
    BUSY = "busy"  # other processes want every core (`busy.py`)
    STALE_STANDBY = "stale-standby"  # PostgreSQL is killed, and a standby that is behind takes over
    RESET = "reset-offsets"  # the offsets of a role's groups are changed in Kafka while their members are silent
    DELETE = "delete-groups"  # the groups of a role are deleted in Kafka while their members are silent
    REGION = "time-zone"  # a role or PostgreSQL continues with another time zone, and another locale or date style
    UNSYNCED = "lose-unsynced"  # Kafka is killed and loses what it had not synced; then repair-log
    ELECTION = "unclean-election"  # of three brokers, the one that missed the last writes leads; then repair-log


ROLES = ("worker", "sinks", "workers", "materializers", "api")
SERVERS = ("kafka", "database", "redis", "redis_cache", "schema_registry")
PROXIED = ("kafka", "database", "redis", "redis_cache")
# Consumers of events from outside, all of the role `sinks`, by group: their effects must appear once, however often
# they read.
REWOUND = ("insights", "users", "fixtures", "results", "votes", "queries", "jobs", "chunks")
GROUPED = ("worker", "sinks", "workers", "materializers")
# Time zones with the locales of roles and the date styles of PostgreSQL. Half hours, quarters, the other side of the date
# line, languages with another decimal point and another lower case of I, a character set that is not UTF-8; most are not
# installed on most machines, and the last zone exists nowhere: PostgreSQL refuses it, a process takes UTC instead.
REGIONS = (
    ("America/St_Johns", "tr_TR.UTF-8", "SQL, DMY"),
    ("Asia/Kathmandu", "C", "German"),
    ("Pacific/Apia", "de_DE.UTF-8", "Postgres, MDY"),
    ("Europe/Dublin", "tr_TR.ISO-8859-9", "ISO, YMD"),
    ("Nowhere/Here", "xx_XX.UTF-8", ""),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `amount`: seconds that a clock is ahead, below 0 behind; records that a consumer is set back; processes
    that compute; the place in `REGIONS`, from 1; else 0.
    """

    kind: Kind
    target: str
    seconds: float
    amount: int = 0

    def __str__(self) -> str:
        """Describe it for a reader."""
        match self.kind:
            case Kind.CLOCK:
                more = f" by {self.amount:+d} s"
            case Kind.REWIND | Kind.RESET:
                more = f" by {self.amount} records"
            case Kind.BUSY:
                more = f" with {self.amount} processes"
            case Kind.REGION:
                more = f" {REGIONS[self.amount - 1][0]}"
            case _:
                more = ""
        lasting = f" for {self.seconds:g} s" if self.seconds else ""
        return f"{self.kind} {self.target}{more}{lasting}"

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A kind with its targets, and the ranges of seconds and amount to draw from; `later`: of seconds, from its second
    turn on, which only long runs reach; `is_late`: whether it has no first turn.
    """

    kind: Kind
    targets: Sequence[str]
    seconds: tuple[int, int]
    amount: tuple[int, int] = (0, 0)
    later: tuple[int, int] | None = None
    is_late: bool = False


# A consumer's session and a lease last 10 s, a delivery 15 s: faults of up to 14 s end before, between and after them.
# A role that is silent for a minute is replaced, which is a kill.
_DRAWN = (
    _Drawn(Kind.KILL, ROLES, (0, 0)),
    _Drawn(Kind.KILL, SERVERS, (1, 5)),
    _Drawn(Kind.STOP, ROLES, (2, 14)),
    _Drawn(Kind.STOP, SERVERS, (2, 14)),
    _Drawn(Kind.CUT, PROXIED, (1, 6)),
    _Drawn(Kind.SLOW, PROXIED, (3, 8)),
    _Drawn(Kind.HALF_OPEN, PROXIED, (3, 14)),
    _Drawn(Kind.LATE, ("redis", "redis_cache"), (2, 8)),
    _Drawn(Kind.TERMINATE, ("database",), (2, 5)),
    _Drawn(Kind.CLOCK, ROLES, (3, 8), (-20, 20)),
    _Drawn(Kind.REBALANCE, ("worker", "sinks", "workers", "materializers"), (4, 10)),
    _Drawn(Kind.REWIND, REWOUND, (0, 0), (1, 60)),
    _Drawn(Kind.FORGET, ("worker",), (0, 0)),
    _Drawn(Kind.LOSE, ("worker",), (0, 0)),
    _Drawn(Kind.FULL, ("kafka",), (2, 8)),
    _Drawn(Kind.BUSY, ("machine",), (10, 30), (40, 40), later=(600, 600)),
    _Drawn(Kind.RESET, GROUPED, (0, 0), (1, 60)),
    _Drawn(Kind.DELETE, GROUPED, (0, 0)),
    _Drawn(Kind.REGION, ROLES, (0, 0), (1, len(REGIONS))),
    _Drawn(Kind.REGION, ("database",), (0, 0), (1, len(REGIONS) - 1)),
    # Late, since `verify` cannot compare what the log has lost: in short runs it would hide what it is to find.
    _Drawn(Kind.UNSYNCED, ("kafka",), (5, 20), is_late=True),
)
# Only in plans that name them. A database that goes back loses answers that were paid for, and reports it: the checks of
# other plans call that wrong. An election needs three brokers, which leave two cores little for anything else.
_NAMED = (
    _Drawn(Kind.STALE_STANDBY, ("database",), (2, 8)),
    _Drawn(Kind.ELECTION, ("kafka",), (5, 20)),
)
# How long a stack needs to recover from most faults on two cores, so that a plan of N minutes takes about N minutes.
RECOVERY_SECONDS = 6.0

# Faults that no plan contains, and why; printed with every run.
LEFT_OUT = {
    "an election of a replica that is behind": "only with --only unclean-election: it needs three brokers; before it"
    " everything is stored, and tests/integration/deploy/test_unclean_election.py makes one under load",
    "records that Kafka had not synced, under load": "with one broker, records that were acknowledged and not yet stored are"
    " lost as well, and a run could not tell these from a defect: before lose-unsynced cuts the log, everything is stored",
    "offsets of groups that Kafka had not synced": "lose-unsynced keeps them: of a topic that only the worker reads, they are the"
    " one trace of lost records, and verify would call what these had caused a difference",
    "offsets of a topic that a group with members does not read": "the clients cannot delete them; nothing reads them",
    "a standby that is behind takes over": "only with --only stale-standby: it loses answers that were paid for, as it must",
    "full disk of PostgreSQL": "it runs as a user of its own where root starts it, and limits of another user's process need"
    " CAP_SYS_RESOURCE, which containers lack",
    "full disk of the worker": "not tried yet",
    "a full disk of which blocks that exist can still be written": "that takes a file system of a bounded size, which needs the"
    " rights of root; full-disk limits the size of files, and the tests of sinks meet SQLSTATE 53100",
    "the API's clock file during a request": "the clock is read once a second, so a fault of it begins up to a second late",
}


def brokers_for(planned: Collection[Fault]) -> int:
    """Return how many brokers a plan needs."""
    return 3 if any(fault.kind is Kind.ELECTION for fault in planned) else 1


def deck(turn: int = 1) -> list[tuple[Kind, str]]:
    """Return the faults of one turn, from 0, of plans that name no kinds: each kind with each target."""
    return [(drawn.kind, target) for drawn in _DRAWN if turn or not drawn.is_late for target in drawn.targets]


def plan_faults(seed: int, seconds: float, *, kinds: Collection[Kind] = ()) -> list[Fault]:
    """Return the faults of a seed: the whole deck, shuffled by the seed, repeated until the time is over.

    Args:
        seed: determines the drawing.
        seconds: total duration, with what follows each fault; there is at least one.
        kinds: only these; empty: all.
    """
    planned: list[Fault] = []
    spent = 0.0
    for fault in _drawn(seed, kinds):
        spent += fault.seconds + RECOVERY_SECONDS
        if planned and spent > seconds:
            return planned
        planned.append(fault)
    return planned


def _drawn(seed: int, kinds: Collection[Kind]) -> Iterator[Fault]:
    kept = [drawn for drawn in (*_DRAWN, *_NAMED) if drawn.kind in kinds] if kinds else _DRAWN
    cards = [(drawn, target) for drawn in kept for target in drawn.targets]
    for turn in count() if cards else ():
        for drawn, target in sorted(cards, key=lambda card: _number(seed, turn, "order", card[0].kind, card[1])):
            if drawn.is_late and not turn and not kinds:
                continue
            at = (seed, turn, drawn.kind, target)
            seconds = drawn.later if turn and drawn.later is not None else drawn.seconds
            yield Fault(drawn.kind, target, _between(seconds, *at, "seconds"), _amount(drawn, *at))


def _amount(drawn: _Drawn, *at: object) -> int:
    amount = _between(drawn.amount, *at, "amount")
    return amount or drawn.amount[1]  # a clock that is right is not a fault


def _between(limits: tuple[int, int], *at: object) -> int:
    low, high = limits
    return low + _number(*at) % (high - low + 1)


def _number(*at: object) -> int:
    """Return a number that does not depend on the Python version that draws it."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, at)).encode()).digest()[:8], "big")
