"""What `highwater up` runs: the four services, then the roles, each restarted when it dies.

Invariant: nothing it started remains when it ends, however it ends; and its knowledge is in the state file, for
`status` and `down` to read.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self

from highwater.deploy.local.attention import Attention
from highwater.deploy.local.errors import LocalStackError, MisconfiguredError, PartFailedError, StartCancelledError
from highwater.deploy.local.part import START_LIMIT, Addresses, as_principal
from highwater.deploy.local.probes import is_answering, probe_url
from highwater.deploy.local.process import Command, ManagedProcess, describe_exit
from highwater.deploy.local.progress import Wait
from highwater.deploy.local.pulse import Listener
from highwater.deploy.local.stack import PROBE_SECONDS, LocalStack
from highwater.deploy.local.state import (
    copy_refusal,
    end_leftovers,
    folder_identity,
    is_copied,
    own_identity,
    read_state,
    write_state,
)
from highwater.deploy.local.watched import MISCONFIGURED_STATUS, State, Watched
from highwater.streams.progress import WorkLimit

# To finish a batch and commit; all roles have it at the same time. One that is killed repeats its batch, nothing else.
ROLE_GRACE_SECONDS = 15.0
# After this long a service or role is called late: a complete cold start takes a tenth of it on two idle cores, and
# half of it on busy ones.
LATE_SECONDS = 480.0
# How often processes are checked while one of them starts, and while all are up: an end is noticed at once in either
# case.
LOOK_SECONDS, REST_LOOK_SECONDS = 0.1, 1.0
READY_PROBE_SECONDS = 1.0
ROTATE_SECONDS = 5.0  # how often log sizes are checked: at 2 MB/s a log exceeds its limit by half
LEFTOVERS_SECONDS = 10.0  # how long a predecessor's processes may take to end
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Role:
    """A process of the product.

    env is added to the supervisor's own environment and to the addresses. A one-shot must end with status 0 before the
    next roles start. A role without ready_url is up when it lives; for an https one, `certificate` is the file of its
    certificate. `principal` is the user of Kafka that it is, where the environment has passwords of several; None: the operator.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    ready_url: str | None = None
    certificate: str | None = None
    restart: bool = True
    oneshot: bool = False
    principal: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The instructions for a supervisor; plain values, so that they can be sent to a detached one."""

    data_dir: Path
    given: Addresses = field(default_factory=Addresses)
    roles: tuple[Role, ...] = ()
    api_url: str | None = None
    is_secure: bool = False
    late_seconds: float = LATE_SECONDS
    brokers: int = 1
    principals: tuple[str, ...] = ()  # the users of Kafka besides the operator

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "data_dir": str(self.data_dir)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Return the plan that `to_json` was made from."""
        roles = tuple(Role(**{**role, "argv": tuple(role["argv"])}) for role in values["roles"])
        given = Addresses(**values["given"])
        more = {name: values[name] for name in ("api_url", "is_secure", "late_seconds", "brokers")}
        return cls(Path(values["data_dir"]), given, roles, **more, principals=tuple(values["principals"]))


class Supervisor:
    """Runs a plan until it is asked to stop."""

    def __init__(self, plan: Plan, report: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self._report = report or (lambda _line: None)
        self.stack = LocalStack(
            plan.data_dir,
            plan.given,
            self._heard,
            is_secure=plan.is_secure,
            late_seconds=plan.late_seconds,
            brokers=plan.brokers,
            principals=plan.principals,
            is_restoring=all(role.oneshot for role in plan.roles),
        )
        self.data_dir = self.stack.data_dir
        self._stop_requested = self.stack.cancelled
        self._attention = Attention()
        self._phase = "starting"
        self._folder: dict[str, Any] = {}
        self._error: str | None = None
        self._is_misconfigured = False
        self._written: dict[str, Any] | None = None
        self._told_once: str | None = None
        self._rotated_at = float("-inf")
        self._recording = threading.Lock()
        given = plan.given.by_name()
        names = [name for one in given for name in ((one,) if given[one] else self.stack.names_of(one))]
        self._services = [self._watched_service(name) for name in names]
        self._roles = [self._watched_role(role) for role in plan.roles]
        self._waits: dict[str, Wait] = {}

    def run(self) -> None:
        """Start everything, keep it running until a signal or `request_stop`, stop everything.

        Raises:
            AlreadyRunningError: Another supervisor has this data folder.
            MisconfiguredError: A role cannot use a setting; everything was stopped again.
            PartFailedError: The start failed; everything was stopped again.
        """
        self.stack.lock.take()
        self._folder = folder_identity(self.data_dir, self.stack.lock.inode)
        before = self._catch_signals()
        try:
            self._run_locked()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def request_stop(self) -> None:
        """Ask `run` to stop everything and return."""
        self._stop_requested.set()
        self._attention.wake()

    def _run_locked(self) -> None:
        try:
            self._take_over(read_state(self.data_dir) or {})
            self._record()
            self.stack.start()
            self._start_roles()
            self._phase = "running"
            self._watch()
        except StartCancelledError:
            self._report("the start was interrupted")
        except LocalStackError as error:
            self._error = str(error)
            self._is_misconfigured = isinstance(error, MisconfiguredError)
            raise
        finally:
            self._stop()

    def _take_over(self, state: dict[str, Any]) -> None:
        """End what a dead supervisor of this folder left; the processes of the folder that it was copied from continue."""
        if is_copied(state, self._folder):
            refusal = copy_refusal(state, self.data_dir)
            if refusal is not None:
                raise LocalStackError(refusal)
        else:
            end_leftovers(state, LEFTOVERS_SECONDS)

    def _heard(self, line: str) -> None:
        # Called by the threads that start the services, while `run` waits for all of them.
        self._report(line)
        with self._recording:
            for service in self._services:
                if service.state is State.STARTING and service.name in self.stack.answered:
                    service.adopt(time.monotonic())
        self._record()

    def _start_roles(self) -> None:
        for role, watched in zip(self.plan.roles, self._roles, strict=True):
            if self._stop_requested.is_set():
                raise StartCancelledError(f"{role.name}: the start was abandoned")
            self._waits[role.name] = Wait(role.name, time.monotonic(), self.plan.late_seconds)
            if role.oneshot:
                self._run_oneshot(role, watched)
            else:
                watched.begin(time.monotonic())
            self._record()

    def _run_oneshot(self, role: Role, watched: Watched) -> None:
        process = watched.process
        assert process is not None
        self._report(f"{role.name} is running")
        wait = self._waits.pop(role.name)
        self._launch_role(role, process)
        self._record()
        while process.is_alive():
            if self._stop_requested.is_set():
                raise StartCancelledError(f"{role.name}: the start was abandoned")
            self._pause(REST_LOOK_SECONDS, process)
            for line in wait.lines(time.monotonic(), f"it has not ended; its log: {process.log_path}"):
                self._report(line)
        status = process.exit_status() or 0
        if status == MISCONFIGURED_STATUS:
            raise self._misconfigured(watched, process.last_words() or describe_exit(status))
        if status != 0:
            raise self._failed(watched, describe_exit(status))
        watched.finish(State.DONE)
        self._report(f"{role.name} is done after {wait.seconds(time.monotonic()):.1f} s")

    def _failed(self, watched: Watched, reason: str) -> PartFailedError:
        assert watched.process is not None
        error = watched.process.failure(reason)
        watched.finish(State.FAILED)
        watched.last_error = error.log_lines[-1] if error.log_lines else reason
        return error

    @staticmethod
    def _misconfigured(watched: Watched, reason: str) -> MisconfiguredError:
        watched.finish(State.FAILED)
        watched.last_error = reason
        return MisconfiguredError(f"{watched.name} cannot start: {reason}")

    def _watch(self) -> None:
        states: dict[str, State] = {}
        while not self._stop_requested.is_set():
            if self.stack.lock.is_orphaned():
                raise LocalStackError(f"the data folder {self.data_dir} was removed: everything was stopped")
            for watched in (*self._services, *self._roles):
                now = time.monotonic()
                watched.step(now)
                if watched.is_misconfigured:
                    raise self._misconfigured(watched, watched.last_error or "")
                self._report_change(watched, states)
                self._report_wait(watched, now)
            self._rotate_logs()
            self._record()
            everything = (*self._services, *self._roles)
            is_at_rest = not any(watched.state in {State.STARTING, State.RESTARTING} for watched in everything)
            processes = [watched.process for watched in everything if watched.process is not None]
            self._pause(REST_LOOK_SECONDS if is_at_rest else LOOK_SECONDS, *processes)

    def _pause(self, seconds: float, *processes: ManagedProcess) -> None:
        """Wait this long, or until one of these processes ends, or a stop is requested."""
        self._attention.pause([one.pid for one in processes if one.pid is not None and one.is_alive()], seconds)

    def _rotate_logs(self) -> None:
        if time.monotonic() - self._rotated_at < ROTATE_SECONDS:
            return
        self._rotated_at = time.monotonic()
        for watched in (*self._services, *self._roles):
            if watched.process is not None:
                try:
                    watched.process.rotate()
                except OSError as error:  # a full disk: running processes continue
                    self._report_once(f"the log of {watched.name} cannot be set aside: {error}")

    def _report_once(self, line: str) -> None:
        if line != self._told_once:
            self._told_once = line
            self._report(line)

    def _report_change(self, watched: Watched, states: dict[str, State]) -> None:
        if states.get(watched.name) is watched.state:
            return
        is_news = watched.name in states or watched.kind == "role"
        states[watched.name] = watched.state
        if not is_news or watched.state is State.DONE:
            return
        if watched.state is State.UP and watched.name in self._waits:
            seconds = self._waits.pop(watched.name).seconds(time.monotonic())
            self._report(f"{watched.name} is ready after {seconds:.1f} s")
            return
        why = f": {watched.last_error}" if watched.state in {State.RESTARTING, State.FAILED} else ""
        self._report(f"{watched.name} is {watched.state}{why}")

    def _report_wait(self, watched: Watched, now: float) -> None:
        """Report that a role that has never been ready is awaited, and why."""
        if watched.state is not State.STARTING or watched.name not in self._waits:
            return
        for line in self._waits[watched.name].lines(now, watched.waits_for or "it does not answer"):
            self._report(line)

    def _stop(self) -> None:
        self._phase = "stopping"
        self._record()
        processes = [watched.process for watched in reversed(self._roles) if watched.process is not None]
        for process in processes:
            process.begin_stop()
        deadline = time.monotonic() + ROLE_GRACE_SECONDS
        for process in processes:
            left = max(0.0, deadline - time.monotonic())
            process.stop(WorkLimit(left, left))
        self.stack.stop_parts()
        for watched in (*self._roles, *self._services):
            watched.finish(State.STOPPED if watched.process else State.EXTERNAL)
        self._phase = "failed" if self._error else "stopped"
        self._record()
        self.stack.ports.release()
        self.stack.lock.release()

    def _record(self) -> None:
        with self._recording:
            self._record_locked()

    def _record_locked(self) -> None:
        known = self.stack.addresses
        addresses = known.by_name()
        parts = [{**s.snapshot(), "address": self.stack.address_of(s.name)} for s in self._services]
        parts += [
            {**w.snapshot(), "ready_url": r.ready_url, "certificate": r.certificate}
            for w, r in zip(self._roles, self.plan.roles, strict=True)
        ]
        state = {
            "phase": self._phase,
            "error": self._error,
            "misconfigured": self._is_misconfigured,
            "supervisor": own_identity(),
            "folder": self._folder,
            "api": self.plan.api_url,
            **addresses,
            "secure": self.plan.is_secure,
            "settings": dict(known.settings),
            "parts": parts,
        }
        if state == self._written or self.stack.lock.is_orphaned():
            return
        try:
            write_state(self.data_dir, state)
        except OSError as error:  # a full disk: running processes continue, and the next check writes it
            self._report_once(f"the state file cannot be written: {error}")
            return
        self._written = state

    def _watched_service(self, name: str) -> Watched:
        process = self.stack.process(name) if name in self.stack.names else None
        return Watched(
            name,
            "service",
            process,
            launch=partial(self.stack.launch_part, name),
            probe=partial(self.stack.probe, name, PROBE_SECONDS),
            start_limit=START_LIMIT,
        )

    def _watched_role(self, role: Role) -> Watched:
        process = ManagedProcess(role.name, self.data_dir / "logs" / f"{role.name}.log")
        url = role.ready_url
        probe = partial(probe_url, url, READY_PROBE_SECONDS, role.certificate) if url else None
        launch = partial(self._launch_role, role, process)
        listener = Listener(partial(is_answering, url, certificate=role.certificate)) if url and role.restart else None
        return Watched(
            role.name, "role", process, launch=launch, probe=probe, is_restarted=role.restart, listener=listener
        )

    def _launch_role(self, role: Role, process: ManagedProcess) -> None:
        env = {**os.environ, **self.stack.addresses.environment(), **role.env}
        process.start(Command(role.argv, env=as_principal(env, role.principal)))

    def _catch_signals(self) -> dict[signal.Signals, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}  # a caller that runs it in a thread calls request_stop

        def ask_to_stop(_number: int, _frame: FrameType | None) -> None:
            self.request_stop()

        return {number: signal.signal(number, ask_to_stop) for number in STOP_SIGNALS}
