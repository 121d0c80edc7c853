"""The state machine of a job: one table of legal moves.

Invariant: a status changes only by a move of the table. An ended job keeps its status, except for a failed job that is
restarted. A job that was revoked, or that no worker began in time, is never processed (R2.40).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

from highwater.schemas.jobs import EXPORT_REQUESTED, GENERATION_REQUESTED, INGESTION_REQUESTED, GenerationRequested
from highwater.schemas.topic_names import TopicName
from highwater.streams.engines.states import Moves, moved


class Kind(StrEnum):
    """What a job makes."""

    GENERATION = "generation"
    INGESTION = "ingestion"
    EXPORT = "export"


class JobStatus(StrEnum):
    """The status of a job."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    REVOKED = "revoked"
    EXPIRED = "expired"


class JobMove(StrEnum):
    """What can happen to a job."""

    TAKE = "take"  # # a worker begins or continues it
    FINISH = "finish"
    RETURN = "return"  # # its worker ended, its lease expired, or its approval arrived: it waits for a slot
    FAIL = "fail"
    REVOKE = "revoke"
    EXPIRE = "expire"
    RESTART = "restart"  # # a failed job continues from its checkpoint


_S, _M = JobStatus, JobMove
MOVES: Moves[JobStatus, JobMove] = {
    (_S.PENDING, _M.TAKE): _S.RUNNING,
    (_S.RUNNING, _M.FINISH): _S.COMPLETED,
    (_S.RUNNING, _M.RETURN): _S.PENDING,
    (_S.PENDING, _M.FAIL): _S.FAILED,
    (_S.RUNNING, _M.FAIL): _S.FAILED,
    (_S.PENDING, _M.REVOKE): _S.REVOKED,
    (_S.RUNNING, _M.REVOKE): _S.REVOKED,
    (_S.PENDING, _M.EXPIRE): _S.EXPIRED,
    (_S.FAILED, _M.RESTART): _S.PENDING,
}
ENDED = frozenset({_S.COMPLETED, _S.FAILED, _S.REVOKED, _S.EXPIRED})
# # The records of the three kinds have the same fields; the type checker reports if they no longer do.
JobRequested: TypeAlias = GenerationRequested
# # The topic that requests each kind; separate ones, so that none delays another (R2.39).
REQUESTED: Mapping[Kind, TopicName[JobRequested]] = {
    Kind.GENERATION: GENERATION_REQUESTED,
    Kind.INGESTION: INGESTION_REQUESTED,
    Kind.EXPORT: EXPORT_REQUESTED,
}


def advance(status: JobStatus, move: JobMove) -> JobStatus:
    """Return the status after a move.

    Raises:
        IllegalMoveError: the table does not have the move.
    """
    return moved(MOVES, status, move, of="a job")


def percent(done: int, total: int) -> int:
    """Return whole percents, rounded down (R2.18): 7 of 15 is 46; 0 while the total is unknown."""
    return 0 if total <= 0 else min(100, max(0, 100 * done // total))
