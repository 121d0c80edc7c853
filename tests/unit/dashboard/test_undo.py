"""The undo window: one table of moves; nothing begins before its time, and nothing that was stopped begins at all."""

from __future__ import annotations

import itertools

import pytest

from highwater.api.dashboard.undo import MOVES, UNDO_SECONDS, Delayed, IllegalUndoMoveError, Move, Phase

BEGIN = 100.0
WAITING = Delayed(3, BEGIN + UNDO_SECONDS)


def test_it_is_due_when_the_window_has_ended():
    """Not a moment before; the seconds that are left are rounded up."""
    assert not WAITING.is_due(BEGIN + UNDO_SECONDS - 0.01)
    assert WAITING.is_due(BEGIN + UNDO_SECONDS)
    assert [WAITING.seconds_left(BEGIN + after) for after in (0, 0.5, 9.5, 11)] == [10, 10, 1, 0]


def test_what_was_stopped_is_never_due():
    """Also after the window."""
    stopped = WAITING.moved(Move.STOP)
    assert not stopped.is_due(BEGIN + 1_000)
    with pytest.raises(IllegalUndoMoveError):
        stopped.moved(Move.BEGIN)


def test_what_runs_is_stopped_or_ends():
    """A stop between two batches; the end of the work; a failure."""
    running = WAITING.moved(Move.BEGIN)
    assert [running.moved(one).phase for one in (Move.STOP, Move.FINISH, Move.FAIL)] == [
        Phase.STOPPED,
        Phase.DONE,
        Phase.FAILED,
    ]


@pytest.mark.parametrize(("phase", "move"), list(itertools.product(Phase, Move)))
def test_moves_are_those_of_the_table(phase, move):
    """An illegal one raises and changes nothing."""
    action = Delayed(3, 0, phase)
    if (phase, move) in MOVES:
        assert action.moved(move).phase is MOVES[phase, move]
    else:
        with pytest.raises(IllegalUndoMoveError):
            action.moved(move)
        assert action.phase is phase
