"""One run of `highwater chaos`: injects the faults of a plan one after the other under load, and checks the result.

Invariant: every wait has a limit, and reaching it is a finding. A run always stops its stack.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from highwater.api.chaos.faults import make, making
from highwater.api.chaos.foreign import Foreign
from highwater.api.chaos.ground import Ground, MakePlan, Remedies, Report, Stuck, is_answered
from highwater.api.chaos.load import Load
from highwater.api.chaos.plan import LEFT_OUT, Fault, Kind, brokers_for
from highwater.connectors.backup.results import LOST
from highwater.connectors.chaos import truths
from highwater.connectors.chaos.versions import repeated_versions
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.verify.report import Report as Verification
from highwater.streams.settings import Settings

# From the end of a fault until a written event can be read again and every role is ready. A consumer's session (10 s),
# a lease (10 s), a delivery (15 s) and pauses between attempts may follow each other; a busy machine takes four times
# that.
RECOVERY_SECONDS_MAX = 150.0
# From the end of the load until no work is left: a stage or job whose worker was lost silently waits for its lease.
SETTLING_SECONDS_MAX = 300.0
_LOOK_SECONDS = 0.05
_WAIT_SECONDS = 1.0
DIFFERENCES_SHOWN = 20

Verify = Callable[[Settings], Coroutine[Any, Any, Verification]]


@dataclass(frozen=True, slots=True)
class Recovery:
    """Recovery of a stack: seconds from the end of a fault until a written event was read, and until everything was ready."""

    fault: Fault
    readable_seconds: float
    ready_seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        seconds = {"readable_seconds": round(self.readable_seconds, 2), "ready_seconds": round(self.ready_seconds, 2)}
        return {**self.fault.as_json(), **seconds}


def by_kind(recovered: Sequence[Recovery]) -> dict[str, dict[str, float]]:
    """Return, for each kind of fault, the count and the median and worst seconds until a written event was read again."""
    found: dict[str, list[float]] = {}
    for recovery in recovered:
        found.setdefault(recovery.fault.kind.value, []).append(recovery.readable_seconds)
    return {
        kind: {"faults": len(taken), "median_seconds": round(median(taken), 2), "worst_seconds": round(max(taken), 2)}
        for kind, taken in sorted(found.items())
    }


@dataclass(slots=True)
class Outcome:
    """What a run found; `problems` is empty when everything was correct."""

    seed: int
    planned: list[Fault]
    recovered: list[Recovery] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    compared: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "seed": self.seed,
            "planned": [fault.as_json() for fault in self.planned],
            "faults": [recovery.as_json() for recovery in self.recovered],
            "by_kind": by_kind(self.recovered),
            "problems": self.problems,
            "sent": self.sent,
            "requests": self.requests,
            "compared": self.compared,
            "seconds": {name: round(seconds, 1) for name, seconds in self.seconds.items()},
            "left_out": LEFT_OUT,
        }


class Run:
    """The faults of one seed on one stack."""

    def __init__(self, ground: Ground, load: Load, outcome: Outcome, notify: Callable[[Recovery], None]) -> None:
        self._ground = ground
        self._load = load
        self._outcome = outcome
        self._told = notify
        self._probes = 0
        self._left: dict[str, int] = {}  # unfinished work
        self._restarts = dict.fromkeys(ground.restarts(), 0)

    def under_load(self, foreign: Foreign, verify: Verify) -> None:
        """Inject the faults.

        Raises:
            Stuck: the stack did not recover from one of them.
        """
        self._recovered()  # first without a fault, so that the first one is not blamed for a slow start
        for fault in self._outcome.planned:
            made = making(self._ground, fault, partial(self._at_rest, foreign, verify))
            make(made, fault)
            for role in made.restarted:
                self._restarts[role] += 1
            try:
                readable, ready = self._recovered()
            except Stuck as error:
                raise Stuck(f"after {fault}: {error}") from error
            recovery = Recovery(fault, readable, ready)
            self._outcome.recovered.append(recovery)
            self._told(recovery)
            self._note_restarts(fault, made.may_end)

    def _recovered(self) -> tuple[float, float]:
        """Return the seconds until a written event is read again, and until every role is ready."""
        began = time.monotonic()
        self._probes += 1
        number = self._probes
        self._ground.until(lambda: self._load.probe(number), "an event is not taken", RECOVERY_SECONDS_MAX)
        self._ground.until(lambda: self._load.sees(number), "a written event is not read", RECOVERY_SECONDS_MAX)
        readable = time.monotonic() - began
        self._ground.until(self._is_whole, "not every role is there again", RECOVERY_SECONDS_MAX)
        return readable, time.monotonic() - began

    def _is_whole(self) -> bool:
        found = self._ground.restarts()
        return all(found.get(role, 0) >= count for role, count in self._restarts.items()) and self._ground.is_ready()

    def _note_restarts(self, fault: Fault, ending: Collection[str]) -> None:
        """Record a role that ended without being killed as a finding: an unavailable service must not end a role.
        `ending`: roles that may end.
        """
        for role, count in self._ground.restarts().items():
            if role in ending:
                self._restarts[role] = count  # more than once, perhaps
            elif count > self._restarts[role]:
                self._outcome.problems.append(f"after {fault}: {role} ended by itself ({self._last_error(role)})")
                self._restarts[role] = count

    def _last_error(self, role: str) -> str:
        return self._ground.last_error(role) or "no reason"

    @contextlib.contextmanager
    def _at_rest(self, foreign: Foreign, verify: Verify) -> Iterator[None]:
        """Hold the stack while it has nothing to do: nobody sends, everything that was sent is stored, and the worker, which
        makes work at its ticks, is stopped.

        Everything is verified before: afterwards the log may have holes, of which `verify` compares nothing.
        """
        with foreign.run.paused(), self._load.paused():
            self._wait_for(lambda: self._is_settled(self._load.sent))
            self._verify(verify)
            self._wait_for(self._is_held)
            yield

    def _is_held(self) -> bool:
        """Stop the worker if there is nothing to do; let it continue if there was something to do after all."""
        if not self._is_idle():
            return False
        self._ground.signal_role("worker", signal.SIGSTOP)
        if self._is_idle():
            return True
        self._ground.signal_role("worker", signal.SIGCONT)
        return False

    def _is_idle(self) -> bool:
        admin = self._admin()
        client = self._ground.settings.kafka_client()
        return self._is_settled(self._load.sent) and not asyncio.run(truths.unread_by_worker(client, admin))

    def settle(self) -> None:
        """Wait until all work is done; work that does not finish is a problem."""
        try:
            self._wait_for(lambda: self._is_settled(self._outcome.sent))
        except Stuck as error:
            self._outcome.problems.append(str(error))

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        try:
            self._ground.until(lambda: is_answered(condition), "work is left", SETTLING_SECONDS_MAX)
        except Stuck as error:
            raise Stuck(f"{error}; {self._left or 'something that was sent is not stored'}") from error

    def _is_settled(self, sent: dict[str, int]) -> bool:
        admin = self._admin()
        self._left = self._ground.asked(lambda connection: truths.unfinished(connection, admin))
        return not self._left and self._has_everything(sent)

    def ask_foreign(self, foreign: Foreign) -> None:
        """Check the history of the foreign clients; what they have left must be stored like everything that was sent."""
        violations, self._outcome.sent = foreign.problems(self._outcome.sent)
        self._outcome.problems += violations

    def check(self, verify: Verify) -> None:
        """Compare everything that is stored with what was sent and with the log."""
        ground, outcome = self._ground, self._outcome
        admin = self._admin()
        outcome.problems += ground.asked(
            lambda connection: truths.wrong(connection, admin, outcome.sent, _lost(outcome.planned))
        )
        outcome.problems += asyncio.run(_repeated(ground.settings, admin))
        self._verify(verify)

    def _verify(self, verify: Verify) -> None:
        """Compare what is stored with the log."""
        outcome = self._outcome
        found = asyncio.run(verify(self._ground.settings))
        outcome.compared += found.compared
        listed = [f"verify: {checked.name} {one.key}: {one.field}" for checked, one in found.listed()]
        outcome.problems += listed[:DIFFERENCES_SHOWN]
        if found.differences > DIFFERENCES_SHOWN:
            outcome.problems.append(f"verify: {found.differences:,} differences in all")

    def _admin(self) -> Admin:
        return Admin({**self._ground.settings.kafka_client(), "log_level": "0"})

    def _has_everything(self, sent: dict[str, int]) -> bool:
        there = self._ground.asked(truths.stored)
        return all(there[name] >= count for name, count in sent.items())

    def note_load(self) -> None:
        """Record what was sent and requested."""
        asked = self._load.asked
        sent = self._load.sent
        self._outcome.sent = {**sent, "insights": sent["insights"] + self._probes}
        self._outcome.requests = {"answered": asked.answered, "refused": asked.refused, "unanswered": asked.unanswered}
        if asked.wrong is not None:
            self._outcome.problems.append(f"the API answered {asked.wrong}")


async def _repeated(settings: Settings, admin: Admin) -> list[str]:
    codec = await Registry(settings.registry_access()).codec()
    return await repeated_versions(settings, admin, codec)


def _lost(planned: Sequence[Fault]) -> Sequence[str]:
    """Return the errors of work that was lost, if a fault lets the database go back."""
    return LOST if any(fault.kind is Kind.STALE_STANDBY for fault in planned) else ()


def run(
    folder: Path, seed: int, planned: Sequence[Fault], *, make_plan: MakePlan, verify: Verify, remedies: Remedies,
    report: Report, notify: Callable[[Recovery], None],
) -> Outcome:  # fmt: skip
    """Inject the faults of a plan into a stack in `folder`.

    Raises:
        LocalStackError: the stack cannot be started.
    """
    outcome = Outcome(seed, list(planned))
    began = time.monotonic()

    def note(name: str) -> None:
        nonlocal began
        outcome.seconds[name] = time.monotonic() - began
        began = time.monotonic()

    with Ground(folder, make_plan, remedies, report, brokers=brokers_for(planned)) as ground:
        foreign = Foreign(ground, seed)
        note("start")
        with foreign.run as clients, Load(ground.settings, ground.api_url) as load:
            one = Run(ground, load, outcome, notify)
            try:
                one.under_load(foreign, verify)
            except Stuck as error:
                outcome.problems.append(str(error))
        clients.stop()
        one.note_load()
        note("faults")
        one.settle()
        one.ask_foreign(foreign)
        one.check(verify)
        note("rest")
    note("end")
    return outcome
