"""Columns that rows of runs and of jobs share: the worker, the event that requested them, and the times."""

from __future__ import annotations

from typing import Any, TypedDict

import orjson

from highwater.connectors.postgres.pool import Row
from highwater.streams.clock import to_ms, to_ms_or_none


class WorkColumns(TypedDict):
    """The common fields of a run and a job; times in ms since 1970."""

    epoch: int
    worker: int | None
    attempt: int
    unusable: int
    returns: int
    lease_until_ms: int | None
    due_ms: int | None
    error: str | None
    position: str
    caused_by: str
    created_ms: int
    updated_ms: int
    completed_ms: int | None


def work_columns(row: Row) -> WorkColumns:
    """Return those of a row of `pipeline_runs` or `jobs`."""
    return {
        "epoch": row["epoch"],
        "worker": row["worker"],
        "attempt": row["attempt"],
        "unusable": row["unusable"],
        "returns": row["returns"],
        "lease_until_ms": row["lease_until_ms"],
        "due_ms": row["due_ms"],
        "error": row["error"],
        "position": row["position"],
        "caused_by": row["caused_by"],
        "created_ms": to_ms(row["created_at"]),
        "updated_ms": to_ms(row["updated_at"]),
        "completed_ms": to_ms_or_none(row["completed_at"]),
    }


def json_or_none(text: str | None) -> Any:
    """Return the value of a JSON column."""
    return None if text is None else orjson.loads(text)
