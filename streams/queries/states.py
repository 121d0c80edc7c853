"""The state machine of a run: one table of legal moves, from which the diagram in ARCHITECTURE is drawn.

Invariant: a status changes only by a move of the table. COMPLETED and FAILED are final (R1.4): a late error changes
nothing, and a restart from a stage creates a new run. A completed run is archived by the same kind of table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from highwater.streams.engines.states import Moves, moved


class Status(StrEnum):
    """The status of a run (R1.4)."""

    NEW = "NEW"
    ANALYZING = "ANALYZING"
    ANALYZED = "ANALYZED"
    ASSEMBLING = "ASSEMBLING"
    READY = "READY"
    RESPONDING = "RESPONDING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class ArchiveStatus(StrEnum):
    """The status of the memory of a completed run (R1.26, R1.28)."""

    WAITING = "WAITING"
    ARCHIVING = "ARCHIVING"
    STORED = "STORED"
    FAILED = "FAILED"


class Stage(StrEnum):
    """The roles that work on a run (R1.5)."""

    ANALYZER = "analyzer"
    ASSEMBLER = "assembler"
    RESPONDER = "responder"
    ARCHIVIST = "archivist"


class Move(StrEnum):
    """What can happen to a run."""

    CAPTURE = "capture"  # a worker claims it (R1.6)
    FINISH = "finish"  # its stage has its result
    RETURN = "return"  # its worker ended or its lease expired (R1.7)
    FAIL = "fail"  # an error, exhausted attempts, or a cancellation


_S, _A, _M = Status, ArchiveStatus, Move
# The statuses in which a stage waits, runs and has ended.
_STEPS: Mapping[Stage, tuple[Status, Status, Status]] = {
    Stage.ANALYZER: (_S.NEW, _S.ANALYZING, _S.ANALYZED),
    Stage.ASSEMBLER: (_S.ANALYZED, _S.ASSEMBLING, _S.READY),
    Stage.RESPONDER: (_S.READY, _S.RESPONDING, _S.COMPLETED),
}
MOVES: Moves[Status, Move] = {
    (_S.NEW, _M.CAPTURE): _S.ANALYZING,
    (_S.ANALYZING, _M.FINISH): _S.ANALYZED,
    (_S.ANALYZING, _M.RETURN): _S.NEW,
    (_S.ANALYZED, _M.CAPTURE): _S.ASSEMBLING,
    (_S.ASSEMBLING, _M.FINISH): _S.READY,
    (_S.ASSEMBLING, _M.RETURN): _S.ANALYZED,
    (_S.READY, _M.CAPTURE): _S.RESPONDING,
    (_S.RESPONDING, _M.FINISH): _S.COMPLETED,
    (_S.RESPONDING, _M.RETURN): _S.READY,
    (_S.NEW, _M.FAIL): _S.FAILED,
    (_S.ANALYZING, _M.FAIL): _S.FAILED,
    (_S.ANALYZED, _M.FAIL): _S.FAILED,
    (_S.ASSEMBLING, _M.FAIL): _S.FAILED,
    (_S.READY, _M.FAIL): _S.FAILED,
    (_S.RESPONDING, _M.FAIL): _S.FAILED,
}
ARCHIVE_MOVES: Moves[ArchiveStatus, Move] = {
    (_A.WAITING, _M.CAPTURE): _A.ARCHIVING,
    (_A.ARCHIVING, _M.FINISH): _A.STORED,
    (_A.ARCHIVING, _M.RETURN): _A.WAITING,
    (_A.WAITING, _M.FAIL): _A.FAILED,
    (_A.ARCHIVING, _M.FAIL): _A.FAILED,
}
TERMINAL = frozenset({Status.COMPLETED, Status.FAILED})
# The stages from which a run may be restarted: the results of the stages before are reused.
RESTARTABLE = (Stage.ANALYZER, Stage.ASSEMBLER, Stage.RESPONDER)


def advance(status: Status, move: Move) -> Status:
    """Return the status after a move.

    Raises:
        IllegalMoveError: the table does not have the move.
    """
    return moved(MOVES, status, move, of="a run")


def advance_archive(status: ArchiveStatus, move: Move) -> ArchiveStatus:
    """Return the status of a completed run's memory after a move.

    Raises:
        IllegalMoveError: the table does not have the move.
    """
    return moved(ARCHIVE_MOVES, status, move, of="a run")


def waiting_status(stage: Stage) -> Status:
    """Return the status in which a run waits for a stage; for the archivist it is COMPLETED throughout."""
    return _STEPS[stage][0] if stage in _STEPS else Status.COMPLETED


def stage_at(status: Status, archive_status: ArchiveStatus | None) -> Stage | None:
    """Return the stage that a run waits for or is in; None if it has ended."""
    if status is Status.COMPLETED:
        has_more = archive_status in (ArchiveStatus.WAITING, ArchiveStatus.ARCHIVING)
        return Stage.ARCHIVIST if has_more else None
    return next((stage for stage, (waits, works, _) in _STEPS.items() if status in (waits, works)), None)


def diagram() -> str:
    """Return the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> NEW"]
    lines += [f"    {before} --> {after}: {move}" for (before, move), after in MOVES.items()]
    lines += ["    COMPLETED --> [*]", "    FAILED --> [*]"]
    return "\n".join(lines) + "\n"
