"""One supervised process: when it is up, and when it is restarted.

Invariant: a death is followed by a restart after a pause that doubles up to a limit, without end: the cause (a full
disk, an unavailable service) may last for hours, and nobody is there to restart it. Only a role that refuses a setting
before it has ever been up is not restarted: no time corrects that, and somebody waits for the start. `now` is a
monotonic time in seconds and an argument, so everything can be tested without waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import psutil

from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.process import ManagedProcess, describe_exit
from highwater.deploy.local.pulse import Listener
from highwater.streams.progress import Progress, WorkLimit

BACKOFF_SECONDS_FIRST = 1.0
BACKOFF_SECONDS_MAX = 30.0  # so that a correction is noticed within it, and a failed start costs little
QUICK_DEATH_SECONDS = 10.0  # one that lived longer had started: its death is a new failure
# A process without a ready URL counts as up when it has lived this long: one that cannot run at all is dead by then.
SETTLED_SECONDS = 1.0
# The exit status of a role that cannot use its configuration (`WRONG_USE` of the command line).
MISCONFIGURED_STATUS = 2


class State(StrEnum):
    """The state of a process; `done` is a one-shot role that ended well."""

    STARTING = "starting"
    UP = "up"
    RESTARTING = "restarting"
    FAILED = "failed"
    EXTERNAL = "external"
    DONE = "done"
    STOPPED = "stopped"


READY_STATES = frozenset({State.UP, State.EXTERNAL, State.DONE})


def restart_pause_seconds(quick_deaths: int) -> float:
    """Return the pause before the next start after this many quick deaths in a row; there is always a next one.

    After none there is no pause.
    """
    if quick_deaths == 0:
        return 0.0
    doublings = min(quick_deaths - 1, 30)  # more would only make large numbers
    return min(BACKOFF_SECONDS_FIRST * 2.0**doublings, BACKOFF_SECONDS_MAX)


class Watched:
    """A process with the history of its starts and deaths.

    `launch` starts it, `probe` returns None when it is ready and a line otherwise. With `is_restarted` off the first
    death is final. With `start_limit` a live process that does not answer and makes no progress is ended, which counts as a
    death; with a `listener` so is one that stopped answering.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        process: ManagedProcess | None,
        *,
        launch: Callable[[], None],
        probe: Callable[[], str | None] | None,
        is_restarted: bool = True,
        start_limit: WorkLimit | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.process = process
        self.state = State.STARTING if process else State.EXTERNAL
        self.restarts = 0
        self.last_error: str | None = None
        self.is_misconfigured = False  # it ended permanently before it was up, because of a setting
        self.waits_for: str | None = None  # the last answer of its readiness, while it starts
        self._launch = launch
        self._probe = probe
        self._is_restarted = is_restarted
        self._start_limit = start_limit
        self._progress: Progress | None = None
        self._listener = listener
        self._launched_at = 0.0
        self._next_launch_at = 0.0
        self._quick_deaths = 0
        self._was_up = False
        self._identity: tuple[int, float] | None = None

    def begin(self, now: float) -> None:
        """Start it."""
        self._launched_at = now
        self._progress = None if self._start_limit is None else Progress(self._start_limit, now)
        if self._listener is not None:
            self._listener.restart(now)
        self.state = State.STARTING
        try:
            self._launch()
        except (LocalStackError, OSError) as error:  # a full disk has no space for logs and settings either
            self._die(now, str(error))

    def adopt(self, now: float) -> None:
        """Take over a process that was started elsewhere and answers."""
        self._launched_at = now
        self._come_up()

    def step(self, now: float) -> None:
        """Check it once and do what is due."""
        if self.process is None or self.state in {State.FAILED, State.DONE, State.STOPPED}:
            return
        if self.state is State.RESTARTING:
            if now >= self._next_launch_at:
                self.restarts += 1
                self.begin(now)
        elif not self.process.is_alive():
            self._see_how_it_ended(now)
        elif self._listener is not None and (silence := self._listener.why_lost(now)) is not None:
            self.process.kill()  # it hangs, and ignores SIGTERM too
            self._die(now, silence)
        elif self.state is State.STARTING:
            self._see_whether_ready(now)

    def finish(self, state: State) -> None:
        """Record that it was stopped, or that a one-shot ended well."""
        if self.state is not State.FAILED:
            self.state = state

    def snapshot(self) -> dict[str, Any]:
        """Return its entry in the state file; `since` is when the present or last process started."""
        pid, began = self._seen_identity()
        since = (
            datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if began else None
        )
        return {
            "name": self.name,
            "kind": self.kind,
            "pid": pid,
            "began": began,
            "state": str(self.state),
            "restarts": self.restarts,
            "since": since,
            "last_error": self.last_error,
        }

    def _see_whether_ready(self, now: float) -> None:
        assert self.process is not None
        age_seconds = now - self._launched_at
        reason = self.waits_for = self._probe() if self._probe else None
        if reason is None and (self._probe or age_seconds >= SETTLED_SECONDS):
            self._come_up()
        elif self._progress is not None:
            why = self._progress.why_over(self.process.work, now)
            if why is not None:
                self.process.kill()
                self._die(now, f"does not answer ({reason}) and {why}")

    def _come_up(self) -> None:
        self.state = State.UP
        self._was_up = True

    def _see_how_it_ended(self, now: float) -> None:
        assert self.process is not None
        status, words = self.process.exit_status() or 0, self.process.last_words()
        if status == MISCONFIGURED_STATUS and self.kind == "role" and not self._was_up:
            self.is_misconfigured = True
            self.last_error = words or describe_exit(status)
            self.state = State.FAILED
            return
        self._die(now, ": ".join(filter(None, (describe_exit(status), words))))

    def _die(self, now: float, error: str) -> None:
        self.last_error = error
        was_quick = now - self._launched_at < QUICK_DEATH_SECONDS
        # A killed server has children that hold its memory and port for a moment; a role has none.
        self._quick_deaths = self._quick_deaths + 1 if was_quick else int(self.kind == "service")
        if not self._is_restarted:
            self.state = State.FAILED
            return
        self.state = State.RESTARTING
        self._next_launch_at = now + restart_pause_seconds(self._quick_deaths)

    def _seen_identity(self) -> tuple[int | None, float | None]:
        """Return the process number and start time, which together are unique."""
        pid = self.process.pid if self.process else None
        if pid is None:
            return None, None
        if self._identity is None or self._identity[0] != pid:
            try:
                self._identity = (pid, psutil.Process(pid).create_time())
            except psutil.NoSuchProcess:
                return pid, None
        return self._identity
