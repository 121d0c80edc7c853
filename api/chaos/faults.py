"""Each kind of fault: how it begins and how it ends.

Invariant: every fault that began is ended, also when the run is interrupted; beginning and ending wait only for servers
that start, for members that Kafka gives up, or for rest, so that a fault lasts as long as planned.
"""

from __future__ import annotations

import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from highwater.api.chaos.busy import BusyMachine
from highwater.api.chaos.ground import START_SECONDS_MAX, Ground, Stuck
from highwater.api.chaos.plan import REGIONS, ROLES, Fault, Kind
from highwater.api.chaos.standby import Standby
from highwater.schemas.errors import UnavailableError

# Each kill interrupts a batch, a query or the renewal of a lease at another point.
_TERMINATION_EVERY_SECONDS = 0.4
_REWOUND_ROLE = "sinks"
# What a worker logs when it refuses to decide on a partition of a table.
_REMEDY = "highwater recover-tables"
# No program can use a file of less than one block; a process that starts meanwhile has the limit before it opens its
# state.
FULL_BYTES = 4096
_FILL_EVERY_SECONDS = 0.05
# A silent member is given up after its session, 6 or 10 s; its supervisor would replace it after a minute.
_GIVEN_UP_SECONDS_MAX = 50.0

AtRest = Callable[[], AbstractContextManager[None]]


class Making(ABC):
    """A fault that is injected into a stack."""

    def __init__(self, ground: Ground, fault: Fault, at_rest: AtRest) -> None:
        self._ground = ground
        self._target = fault.target
        self._fault = fault
        self._at_rest = at_rest

    @property
    def _is_role(self) -> bool:
        return self._target in ROLES

    @property
    def restarted(self) -> tuple[str, ...]:
        """Return the roles that restart because of it."""
        return ()

    @property
    def may_end(self) -> tuple[str, ...]:
        """Return the roles that may end because of it."""
        return self.restarted

    @abstractmethod
    def begin(self) -> None:
        """Begin the fault."""

    @abstractmethod
    def end(self) -> None:
        """End the fault."""


class _Kill(Making):
    @property
    def restarted(self) -> tuple[str, ...]:
        return (self._target,) if self._is_role else ()

    def begin(self) -> None:
        if self._is_role:
            self._ground.signal_role(self._target, signal.SIGKILL)
        else:
            self._ground.servers.kill_part(self._target)

    def end(self) -> None:
        if not self._is_role:
            self._ground.servers.start_part(self._target)


class _Stop(Making):
    def begin(self) -> None:
        self._send(signal.SIGSTOP)

    def end(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        if self._is_role:
            self._ground.signal_role(self._target, number)
        else:
            self._ground.signal_server(self._target, number)


class _Network(Making):
    def begin(self) -> None:
        self._ground.hinder(self._target, self._fault.kind)

    def end(self) -> None:
        self._ground.unhinder(self._target)


class _Terminate(Making):
    def __init__(self, ground: Ground, fault: Fault, at_rest: AtRest) -> None:
        super().__init__(ground, fault, at_rest)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._terminate, name="terminate")

    def _terminate(self) -> None:
        while not self._is_over.is_set():
            try:
                self._ground.terminate_connections()
            except UnavailableError:
                return  # another of our queries ran meanwhile, and was ended by this one
            self._is_over.wait(_TERMINATION_EVERY_SECONDS)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()


class _Clock(Making):
    def begin(self) -> None:
        self._ground.set_clock(self._target, self._fault.amount)

    def end(self) -> None:
        self._ground.set_clock(self._target, 0)


class _Rebalance(Making):
    def begin(self) -> None:
        self._ground.start_second(self._target)

    def end(self) -> None:
        self._ground.kill_second(self._target)


class _Rewind(Making):
    @property
    def restarted(self) -> tuple[str, ...]:
        return (_REWOUND_ROLE,)

    def begin(self) -> None:
        # A live member would continue from its position (`highwater reset` refuses), so one that started meanwhile is
        # killed too.
        self._ground.signal_role(_REWOUND_ROLE, signal.SIGKILL)
        self._ground.rewind(self._target, self._fault.amount)
        self._ground.signal_role(_REWOUND_ROLE, signal.SIGKILL)

    def end(self) -> None:
        """Do nothing: its supervisor restarts it."""


class _Forget(Making):
    @property
    def restarted(self) -> tuple[str, ...]:
        return (self._target,)

    def begin(self) -> None:
        self._ground.signal_role(self._target, signal.SIGSTOP)
        self._take_away()
        self._ground.signal_role(self._target, signal.SIGKILL)

    def _take_away(self) -> None:
        self._ground.forget_tables()

    def end(self) -> None:
        """Do nothing: its supervisor restarts it."""


class _Lose(_Forget):
    @property
    def may_end(self) -> tuple[str, ...]:
        return (self._target,)

    def _take_away(self) -> None:
        self._ground.delete_changelogs()
        super()._take_away()

    def end(self) -> None:
        """Do what an operator does after reading why the worker ends."""
        self._ground.until(
            lambda: _REMEDY in (self._ground.last_error(self._target) or ""), "a loss is not noticed", START_SECONDS_MAX
        )
        self._ground.recover_tables()


class _Full(Making):
    """A role that cannot write ends, and its replacement meets the same disk."""

    def __init__(self, ground: Ground, fault: Fault, at_rest: AtRest) -> None:
        super().__init__(ground, fault, at_rest)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="fill")

    @property
    def may_end(self) -> tuple[str, ...]:
        return (self._target,) if self._is_role else ()

    def _fill(self) -> None:
        while not self._is_over.is_set():
            self._ground.limit_files(self._target, FULL_BYTES)
            self._is_over.wait(_FILL_EVERY_SECONDS)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._ground.limit_files(self._target, None)
        if not self._is_role:
            self._ground.revive_server(self._target)


class _Busy(Making):
    def __init__(self, ground: Ground, fault: Fault, at_rest: AtRest) -> None:
        super().__init__(ground, fault, at_rest)
        self._busy = BusyMachine()

    def begin(self) -> None:
        self._busy.begin(self._fault.amount, self._fault.seconds)

    def end(self) -> None:
        self._busy.end()


class _StaleStandby(Making):
    def __init__(self, ground: Ground, fault: Fault, at_rest: AtRest) -> None:
        super().__init__(ground, fault, at_rest)
        self._standby = Standby(ground)

    def begin(self) -> None:
        """Let the standby follow the server, then hold it behind."""
        self._standby.follow()
        self._standby.hold()

    def end(self) -> None:
        self._standby.take_over()


class _Silent(Making):
    """A change of a role's groups in Kafka, which refuses it while they have members: the role is silent until they have none."""

    def begin(self) -> None:
        self._ground.signal_role(self._target, signal.SIGSTOP)
        self._ground.until(
            lambda: self._ground.is_without_members(self._target), "a silent member stays", _GIVEN_UP_SECONDS_MAX
        )
        self._change()

    @abstractmethod
    def _change(self) -> None:
        """Change the groups."""


class _Reset(_Silent):
    @property
    def restarted(self) -> tuple[str, ...]:
        return (self._target,)

    def _change(self) -> None:
        self._ground.displace_groups(self._target, self._fault.amount)

    def end(self) -> None:
        """Let its supervisor start another one, which reads the changed offsets."""
        self._ground.signal_role(self._target, signal.SIGKILL)


class _Delete(_Silent):
    @property
    def restarted(self) -> tuple[str, ...]:
        """Return the worker: it has no other place to continue from, so it ends, and the next one reads from the beginning."""
        return ("worker",) if self._target == "worker" else ()

    def _change(self) -> None:
        self._ground.delete_groups(self._target)

    def end(self) -> None:
        """Let it continue as a member of a group that does not exist any more."""
        self._ground.signal_role(self._target, signal.SIGCONT)


class _Region(Making):
    @property
    def restarted(self) -> tuple[str, ...]:
        return (self._target,) if self._is_role else ()

    def begin(self) -> None:
        zone, locale, date_style = REGIONS[self._fault.amount - 1]
        if self._is_role:
            self._ground.set_region(self._target, zone, locale)
            self._ground.signal_role(self._target, signal.SIGKILL)
        else:
            self._ground.set_database_region(zone, date_style)
            self._ground.terminate_connections()

    def end(self) -> None:
        """Do nothing: it lasts until the next fault of this kind."""


class _LoseUnsynced(Making):
    """The worker is stopped meanwhile, since its ticks would be the only ones that work while the others rest."""

    @property
    def restarted(self) -> tuple[str, ...]:
        return ("worker",)

    def begin(self) -> None:
        """Let Kafka sync everything, which it does when it is stopped."""
        self._ground.servers.restart_part(self._target)

    def end(self) -> None:
        with self._at_rest():
            self._ground.servers.kill_part(self._target)
            if not self._ground.lose_unsynced():
                raise Stuck("the power loss took nothing")
            self._ground.signal_role("worker", signal.SIGKILL)
            self._ground.servers.start_part(self._target)
            self._ground.repair_log()


class _Election(Making):
    """It lasts from the death of one broker on: what is written in this time is lost when that broker leads."""

    def __init__(self, ground: Ground, fault: Fault, at_rest: AtRest) -> None:
        super().__init__(ground, fault, at_rest)
        self._election = ground.unclean_election()

    @property
    def restarted(self) -> tuple[str, ...]:
        return ("worker",)

    def begin(self) -> None:
        self._election.hold()

    def end(self) -> None:
        with self._at_rest():
            self._ground.signal_role("worker", signal.SIGKILL)
            self._election.take_over()
            self._election.come_back()
            self._ground.repair_log()


_MAKING: Mapping[Kind, type[Making]] = {
    Kind.KILL: _Kill,
    Kind.STOP: _Stop,
    Kind.CUT: _Network,
    Kind.SLOW: _Network,
    Kind.HALF_OPEN: _Network,
    Kind.LATE: _Network,
    Kind.TERMINATE: _Terminate,
    Kind.CLOCK: _Clock,
    Kind.REBALANCE: _Rebalance,
    Kind.REWIND: _Rewind,
    Kind.FORGET: _Forget,
    Kind.LOSE: _Lose,
    Kind.FULL: _Full,
    Kind.BUSY: _Busy,
    Kind.STALE_STANDBY: _StaleStandby,
    Kind.RESET: _Reset,
    Kind.DELETE: _Delete,
    Kind.REGION: _Region,
    Kind.UNSYNCED: _LoseUnsynced,
    Kind.ELECTION: _Election,
}


def making(ground: Ground, fault: Fault, at_rest: AtRest) -> Making:
    """Return the fault, ready to be injected into a stack; `at_rest` holds the stack while it has nothing to do."""
    return _MAKING[fault.kind](ground, fault, at_rest)


def make(made: Making, fault: Fault) -> None:
    """Keep the fault for its duration."""
    made.begin()
    try:
        time.sleep(fault.seconds)  # the duration of the fault
    finally:
        made.end()
