"""The state machine: only the moves in the table are possible."""

from __future__ import annotations

import itertools

import pytest

from highwater.streams.engines.states import IllegalMoveError
from highwater.streams.queries.states import (
    ARCHIVE_MOVES,
    MOVES,
    TERMINAL,
    ArchiveStatus,
    Move,
    Stage,
    Status,
    advance,
    advance_archive,
    diagram,
    stage_at,
    waiting_status,
)
from tests import ROOT

PAGE = ROOT / "docs" / "architecture" / "queries.md"


@pytest.mark.parametrize(("status", "move"), list(itertools.product(Status, Move)))
def test_every_move_is_legal_or_raises(status: Status, move: Move):
    """Each of the 32 pairs is either in the table or an error that names both."""
    if (status, move) in MOVES:
        assert advance(status, move) is MOVES[status, move]
    else:
        with pytest.raises(IllegalMoveError, match=f"{status} cannot {move}"):
            advance(status, move)


@pytest.mark.parametrize(("status", "move"), list(itertools.product(ArchiveStatus, Move)))
def test_every_move_of_a_memory_is_legal_or_raises(status: ArchiveStatus, move: Move):
    """The same for the memory of a completed run."""
    if (status, move) in ARCHIVE_MOVES:
        assert advance_archive(status, move) is ARCHIVE_MOVES[status, move]
    else:
        with pytest.raises(IllegalMoveError):
            advance_archive(status, move)


@pytest.mark.requirement("R1.4", "R1.5")
def test_the_way_of_a_run_skips_nothing():
    """R1.4: by capturing and finishing alone, through all statuses in their order."""
    status, way = Status.NEW, [Status.NEW]
    while status is not Status.COMPLETED:
        move = Move.CAPTURE if (status, Move.CAPTURE) in MOVES else Move.FINISH
        status = advance(status, move)
        way.append(status)
    assert way == [one for one in Status if one is not Status.FAILED]


@pytest.mark.requirement("R1.4")
def test_no_end_is_left():
    """R1.4: COMPLETED and FAILED are terminal; every other status can fail."""
    assert {status for status, _ in MOVES} == set(Status) - TERMINAL
    assert {status for status, move in MOVES if move is Move.FAIL} == set(Status) - TERMINAL


@pytest.mark.requirement("R1.7")
def test_a_returned_run_waits_for_the_same_stage():
    """R1.7: back to where its stage waits, which is where it was captured."""
    for (status, move), after in MOVES.items():
        if move is Move.RETURN:
            assert advance(after, Move.CAPTURE) is status


def test_stages():
    """Each stage has its waiting status, and the next one waits where it has ended."""
    stages = list(Stage)
    for stage in (Stage.ANALYZER, Stage.ASSEMBLER, Stage.RESPONDER):
        waits = waiting_status(stage)
        works = advance(waits, Move.CAPTURE)
        assert stage_at(waits, None) is stage_at(works, None) is stage
        following = stages[stages.index(stage) + 1]
        assert stage_at(advance(works, Move.FINISH), ArchiveStatus.WAITING) is following
    assert stages[-1] is Stage.ARCHIVIST
    assert stage_at(Status.FAILED, None) is None
    assert stage_at(Status.COMPLETED, ArchiveStatus.STORED) is None


def test_the_diagram_in_the_documents_is_drawn_from_the_table():
    """A change of the table changes the picture."""
    assert f"```mermaid\n{diagram()}```" in PAGE.read_text(encoding="utf-8")
