"""An action that begins only after an undo window: a state machine of one table, and the line that shows its state.

Invariant: while the window is open nothing has been done. A stopped action never begins; an illegal move raises and
changes nothing. Leaving the page during the window stops the action.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from nicegui import ui

from highwater.api.dashboard.view import text
from highwater.schemas.errors import HighwaterError
from highwater.streams.clock import monotonic_seconds

# Long enough to read the confirmed text once more, short enough to wait for.
UNDO_SECONDS = 10.0
_TICK_SECONDS = 0.5


class Phase(StrEnum):
    """The state of a delayed action."""

    WAITING = "waiting"  # the undo window is open
    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"


class Move(StrEnum):
    """What can happen to it."""

    BEGIN = "begin"
    STOP = "stop"
    FINISH = "finish"
    FAIL = "fail"


class IllegalUndoMoveError(HighwaterError):
    """A delayed action cannot change its state in this way. Nothing was changed; this is a defect, see the log."""


MOVES: Mapping[tuple[Phase, Move], Phase] = {
    (Phase.WAITING, Move.BEGIN): Phase.RUNNING,
    (Phase.WAITING, Move.STOP): Phase.STOPPED,
    (Phase.RUNNING, Move.STOP): Phase.STOPPED,
    (Phase.RUNNING, Move.FINISH): Phase.DONE,
    (Phase.RUNNING, Move.FAIL): Phase.FAILED,
}


@dataclass(frozen=True, slots=True)
class Delayed:
    """A delayed action: the number of its things, when it begins, and how many are done."""

    total: int
    begins_at_seconds: float
    phase: Phase = Phase.WAITING
    done: int = 0

    def moved(self, move: Move) -> Delayed:
        """Return the action after a move.

        Raises:
            IllegalUndoMoveError: the table does not have the move.
        """
        after = MOVES.get((self.phase, move))
        if after is None:
            raise IllegalUndoMoveError(f"an action that is {self.phase} cannot {move}")
        return replace(self, phase=after)

    def is_due(self, now_seconds: float) -> bool:
        """Return whether the undo window has ended."""
        return self.phase is Phase.WAITING and now_seconds >= self.begins_at_seconds

    def seconds_left(self, now_seconds: float) -> int:
        """Return whole seconds of the undo window that are left, rounded up."""
        return max(0, -int(-(self.begins_at_seconds - now_seconds) // 1))


# The work of an action: it yields how many things are done so far.
Work = Callable[[], AsyncIterator[int]]


class UndoWindow:
    """The line of a page that counts down, can be stopped, and then shows the progress."""

    def __init__(self) -> None:
        self._action: Delayed | None = None

    def build(self) -> None:
        """Add the line and its buttons, hidden."""
        self._card = ui.row().classes("hw-card hw-row")
        self._card.set_visibility(False)
        with self._card:
            self._line = ui.html("", sanitize=False).props("role=status").style("flex:1 1 14rem")
            self._left = ui.html("", sanitize=False).props("aria-hidden=true").classes("hw-muted")
            self._now = ui.button("Do it now", on_click=self._begin_now).props("flat no-caps")
            self._stop = ui.button("Stop", icon="stop", on_click=self._stop_now).props(
                "no-caps unelevated color=negative"
            )
        self._timer = ui.timer(_TICK_SECONDS, self._tick, active=False)

    @property
    def is_busy(self) -> bool:
        """Return whether an action waits or runs."""
        return self._action is not None and self._action.phase in (Phase.WAITING, Phase.RUNNING)

    def open(self, what: str, total: int, work: Work, result: Callable[[], str]) -> None:
        """Begin the window: `what` will be done to `total` things; `result` describes the outcome."""
        if self.is_busy:
            ui.notify("Another action is in progress; wait until it ends, or stop it.", type="warning")
            return
        self._what, self._work, self._result = what, work, result
        self._action = Delayed(total, monotonic_seconds() + UNDO_SECONDS)
        self._card.set_visibility(True)
        self._now.set_visibility(True)
        self._stop.set_visibility(True)
        self._say(f"Nothing has been done yet: {what}.")
        self._timer.activate()

    def _say(self, words: str, tone: str = "") -> None:
        self._line.set_content(f'<span class="{tone}">{text(words)}</span>')

    async def _tick(self) -> None:
        action = self._action
        if action is None or action.phase is not Phase.WAITING:
            return
        self._left.set_content(f"begins in {action.seconds_left(monotonic_seconds())} s")
        if action.is_due(monotonic_seconds()):
            await self._run()

    async def _begin_now(self) -> None:
        if self._action is not None and self._action.phase is Phase.WAITING:
            await self._run()

    def _stop_now(self) -> None:
        if self._action is None or not self.is_busy:
            return
        was_waiting = self._action.phase is Phase.WAITING
        self._action = self._action.moved(Move.STOP)
        if was_waiting:
            self._end("Stopped: nothing was done.", "hw-good")

    async def _run(self) -> None:
        assert self._action is not None
        self._action = self._action.moved(Move.BEGIN)
        self._now.set_visibility(False)
        self._left.set_content("")
        try:
            async for done in self._work():
                self._say(f"{done:,} of {self._action.total:,} done: {self._what}")
                if self._action.phase is Phase.STOPPED:
                    self._end(f"Stopped after {done:,} of {self._action.total:,}. {self._result()}", "hw-warn")
                    return
        except HighwaterError as error:
            self._action = replace(self._action, phase=Phase.FAILED)
            self._end(f"Failed: {error}. {self._result()}", "hw-bad")
            return
        if self._action.phase is Phase.RUNNING:
            self._action = self._action.moved(Move.FINISH)
        self._end(self._result(), "hw-good")

    def _end(self, words: str, tone: str) -> None:
        self._say(words, tone)
        self._left.set_content("")
        self._now.set_visibility(False)
        self._stop.set_visibility(False)
        self._timer.deactivate()
