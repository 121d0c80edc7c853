"""A worker that is killed anywhere and followed by another: agents, rows and indexes are the product's own code, run by
`streams/driver.py`; the log, the changelogs and the commits are not.

The invariants, from ARCHITECTURE.md: published events are processed at least once; no decision is lost; in flight nothing more is
requested, except for events that a kill causes to be read again; the changelogs hold the rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Mapping
from dataclasses import dataclass, field
from random import Random  # noqa: TID251 (seeded: the same run in every process)
from typing import Any

import structlog

from highwater.api.simulate.patches import Patches
from highwater.connectors.verify.rows import ROWS
from highwater.schemas.envelope import Headers, header, make_headers
from highwater.schemas.positions import Position
from highwater.schemas.streams import TICK
from highwater.streams.driver import Delivered, Driver, Table, Watch
from highwater.streams.feeds.dirty import decode_channel
from highwater.streams.feeds.state import decode_user

ADVANCED, CHANGED, NOVELTY = "feeds.channel-advanced", "feeds.user-changed", "feeds.novelty"
DIRTY, REQUESTED = "feeds.channel-dirty", "feeds.rebuild-requested"
PARTITIONS = 2
CHANNELS = USERS = 4
HEADS = 8
TICKS = 12
# This many ticks of each partition come last, and this many of them without faults.
_LAST_TICKS, _CALM_TICKS = 6, 2
# One port in N kills the worker while there are faults.
_KILLED_ONE_IN = 25
_COMMITTED_ONE_IN = 4
# Records of a folded topic that an agent is given at once.
_BATCH_MAX = 6
_START_MS = 1_790_000_000_000
_TICK_MS = 15_000

Place = tuple[str, int]
Sent = tuple[str, str, dict[str, Any], str]  # topic, key, event, id


class KilledError(BaseException):
    """SIGKILL: nothing of the worker continues."""


@dataclass
class Changelog:
    """The rows of a table at the broker, and those in transit, oldest first."""

    rows: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    under_way: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)

    def take(self, count: int) -> None:
        """The broker takes the oldest of them."""
        for partition, key, row in self.under_way[:count]:
            if row is None:
                self.rows.pop((partition, key), None)
            else:
                self.rows[partition, key] = row
        del self.under_way[:count]


class Scenario:
    """One log of events and ticks, and the workers that read it one after the other."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.problems: list[str] = []
        self.steps = self.life = 0
        self.is_calm = False
        self.driver = Driver("channels", "users")
        self.log: dict[Place, list[Delivered]] = {}
        self.next: dict[Place, int] = {}
        self.committed: dict[Place, int] = {}
        self.changelogs = {name: Changelog() for name in self.driver.tables}
        self.sent: list[Sent] = []
        self.under_way: list[Sent] = []
        for name, table in self.driver.tables.items():
            table.watch = self._watch(name)
        # Events of an agent go to the simulated log, which the driver does not know.
        self.driver._send = self._send  # type: ignore[method-assign]
        self.driver.restart()
        self._publish()

    # -- what happens outside ----------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """All events and ticks, each topic in its own order."""
        channels = [f"c{number}" for number in range(CHANNELS)]
        users = [f"u{number}" for number in range(USERS)]
        for head in range(1, HEADS + 1):
            for channel in channels:
                event = {"channel_id": channel, "head": head, "arrived_at": _START_MS + head, "retractions": 0}
                self._append(ADVANCED, event, channel)
        for user in users:
            changed = {
                "user_id": user, "revision": 1, "plan": None, "last_active_at": _START_MS, "subscribed": channels,
                "unsubscribed": [], "rebuild_demanded": False, "rebuild_forced": False, "erased": False,
            }  # fmt: skip
            self._append(CHANGED, changed, user)
            heads = [{"channel_id": channel, "head": 500, "retractions": 0, "users": [user]} for channel in channels]
            self._append(NOVELTY, {"heads": heads}, user)
        for number in range(TICKS):
            now = _START_MS + number * _TICK_MS
            for partition in range(PARTITIONS):
                self._append(TICK, {"number": now // _TICK_MS, "now": now, "clock_offset_ms": 0}, None, partition)

    def _append(self, topic: str, event: dict[str, Any], key: str | None, partition: int = 0) -> None:
        if key is not None:
            partition = int(key[1:]) % PARTITIONS
        records = self.log.setdefault((topic, partition), [])
        headers = make_headers(
            event_id=f"{topic}/{partition}/{len(records)}",
            event_type=topic,
            source="simulation",
            now_ms=_START_MS,
            caused_by=None,
        )
        raw = None if key is None else key.encode()
        records.append(Delivered(topic, partition, len(records), raw, self.driver.codec.encode(topic, event), headers))

    def port(self) -> None:
        """Where a worker meets its environment: records in transit arrive, or not, and the worker may be killed."""
        self.steps += 1
        self._arrive()
        if not self.is_calm and self.dice.randrange(_KILLED_ONE_IN) == 0:
            raise KilledError

    def _arrive(self) -> None:
        """Some of the records in transit arrive, in their order."""
        count = self.dice.randint(0, len(self.under_way))
        self.sent += self.under_way[:count]
        del self.under_way[:count]
        for changelog in self.changelogs.values():
            changelog.take(self.dice.randint(0, len(changelog.under_way)))

    def _flush(self) -> None:
        self.sent += self.under_way
        self.under_way.clear()
        for changelog in self.changelogs.values():
            changelog.take(len(changelog.under_way))

    # -- what the worker does outside --------------------------------------------------------------------------------

    def _watch(self, name: str) -> Watch:
        def written(partition: int, key: bytes, row: bytes | None) -> None:
            self.changelogs[name].under_way.append((partition, key, row))
            self.port()

        return written

    async def _send(
        self, topic: str, *, key: bytes | None, value: bytes | None, headers: Headers, partition: int | None = None
    ) -> Awaitable[Any]:
        record = (
            topic,
            (key or b"").decode(),
            dict(self.driver.codec.decode(topic, value)),
            str(header(headers, "ce_id")),
        )
        self.port()
        self.under_way.append(record)
        return _Acknowledgement(self, record, Position(topic, partition or 0, len(self.sent) + len(self.under_way)))

    # -- a run -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Deal with everything, under trouble first; the last ticks come when all else is dealt with, in peace."""
        while waiting := self._waiting():
            place = self.dice.choice(waiting)
            first = self.next.get(place, 0)
            records = self.log[place][first : first + (self.dice.randint(1, _BATCH_MAX) if place[0] == ADVANCED else 1)]
            try:
                await (self.driver.deliver_batch(records) if len(records) > 1 else self.driver.deliver(records[0]))
            except KilledError:
                self._follow()
                continue
            self.next[place] = first + len(records)
            if self.dice.randrange(_COMMITTED_ONE_IN) == 0:
                self._flush()  # the library flushes before it commits
                self.committed = dict(self.next)
        self._flush()
        self._judge()

    def _waiting(self) -> list[Place]:
        """Where a record waits that may be dealt with now."""
        left = {place: len(records) - self.next.get(place, 0) for place, records in self.log.items()}
        for ticks in (_LAST_TICKS, _CALM_TICKS):
            early = [place for place, count in left.items() if count > (ticks if place[0] == TICK else 0)]
            if early:
                self.is_calm = False
                return early
        self.is_calm = True
        return [place for place, count in left.items() if count]

    def _follow(self) -> None:
        """Another worker: events in transit never arrive; its rows are those of the changelog, or those on the disk."""
        self._arrive()
        self.life += 1
        self.under_way.clear()
        for changelog in self.changelogs.values():
            changelog.under_way.clear()
        self.next = dict(self.committed)
        if self.dice.random() < 0.5:
            for name, table in self.driver.tables.items():
                table.partitions.clear()
                for (partition, key), row in self.changelogs[name].rows.items():
                    table.partitions.setdefault(partition, {})[key] = row
        self.driver.restart()

    # -- invariants --------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        tables = self.driver.tables
        for number in range(CHANNELS):
            told = max(
                (event["head"] for topic, key, event, _ in self.sent if (topic, key) == (DIRTY, f"c{number}")),
                default=0,
            )
            if told != HEADS:
                self.problems.append(f"channel c{number} was reported up to {told} of {HEADS}")
        for number in range(USERS):
            asked = {event_id for topic, key, _, event_id in self.sent if (topic, key) == (REQUESTED, f"u{number}")}
            # A tick that is read again may come before the events that made the user due: then a later one requests again.
            if not 1 <= len(asked) <= 1 + self.life:
                self.problems.append(f"user u{number} has {len(asked)} requests: {sorted(asked)}")
        for name, table in tables.items():
            if self._compared(name, self.changelogs[name].rows) != self._compared(name, rows_of(table)):
                self.problems.append(f"the changelog of {name} does not hold its rows")
        heads = {key.decode(): decode_channel(row).head for _, key, row in tables["channel_heads"].rows()}
        self.problems += [f"channel {channel} is at {head}" for channel, head in heads.items() if head != HEADS]
        known = [decode_user(row).is_known for _, _, row in tables["users"].rows()]
        if known != [True] * USERS:
            self.problems.append(f"{known.count(True)} of {USERS} users are known")

    def _compared(self, table: str, rows: Mapping[tuple[int, bytes], bytes]) -> dict[tuple[int, bytes], bytes]:
        """Without what a tick set: a row on the disk is ahead of one that the changelog lost, which has it decided again."""
        return {(partition, key): ROWS[table].comparable(key, row) for (partition, key), row in rows.items()}


def rows_of(table: Table) -> dict[tuple[int, bytes], bytes]:
    """The rows of a table by partition and key."""
    return {(partition, key): row for partition, key, row in table.rows()}


@dataclass(frozen=True, slots=True, eq=False)
class _Acknowledgement:
    """Waits until the broker has a record; nothing waits for a killed worker any more."""

    scenario: Scenario
    record: Sent
    position: Position

    def __await__(self) -> Generator[None, None, Position]:
        life = self.scenario.life
        while self.scenario.life == life and self.record in self.scenario.under_way:
            self.scenario.port()
            yield
        return self.position


def problems_of(seed: int, _patch: Patches) -> tuple[list[str], int]:
    """The violations of the invariants with a seed, and the number of checked steps."""
    scenario = Scenario(seed)
    with structlog.testing.capture_logs():  # the logs of simulated workers are not read
        asyncio.run(scenario.run())
    return scenario.problems, scenario.steps
