"""The metrics of the query pipeline, from stored data (R1.38 to R1.41).

Invariant: a report covers a span of the product's time, which the caller passes; only sizes and the backlog are
current. A value that was never measured is null, not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import asyncpg

from highwater.connectors.postgres.pool import Row, fetched, one_row, transaction
from highwater.connectors.queries.statements import QUERIES
from highwater.streams.clock import to_datetime
from highwater.streams.queries.states import Stage

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
# A day of a busy pipeline takes some seconds; for a longer wait, a caller should request less.
READ_SECONDS_MAX = 10.0
# A query every few seconds must not be the database's main load.
_LOOK_SECONDS_MAX = 2.0
# Contexts of 32 KB: 32 MB are read.
_CONTEXTS_MAX = 1_000
_COUNTED = ("calls", "sends", "prompt_tokens", "completion_tokens", "rate_limit_hits", "timeouts")
# R1.40.
_TOLD_TABLES = ("pipeline_runs", "raw_logs", "lsm_storage")


async def report(pool: Pool, now_ms: int, minutes: int) -> dict[str, Any]:
    """Return the metrics of the last `minutes` before `now_ms`.

    Raises:
        UnavailableError: PostgreSQL is unavailable, or did not answer in time.
    """
    span = (to_datetime(now_ms - minutes * 60_000), to_datetime(now_ms))
    async with transaction(pool) as tx:
        runs = await one_row(tx, QUERIES["query_pipeline_metrics"], *span, seconds_max=READ_SECONDS_MAX)
        stages = await one_row(tx, QUERIES["query_stage_metrics"], *span, seconds_max=READ_SECONDS_MAX)
        contexts = await one_row(
            tx, QUERIES["query_context_metrics"], *span, _CONTEXTS_MAX, seconds_max=READ_SECONDS_MAX
        )
        calls = await tx.fetch(QUERIES["query_call_metrics"], *span, timeout=READ_SECONDS_MAX)
        sizes = await tx.fetch(QUERIES["query_store_sizes"], timeout=READ_SECONDS_MAX)
    return {
        "minutes": minutes,
        "pipeline": _pipeline(runs, minutes),
        "modules": _modules(runs, stages, contexts, calls),
        "database": {row["table"]: _size(row) for row in sizes if row["table"] in _TOLD_TABLES},
        "llm": _llm(calls),
    }


async def backlog(pool: Pool) -> int:
    """Return the runs that no worker has started.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    (row,) = await fetched(pool, QUERIES["query_backlog"], seconds_max=_LOOK_SECONDS_MAX)
    return int(row[0])


async def store_bytes(pool: Pool) -> dict[str, int]:
    """The size of each table of the queries, with its indexes.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    rows = await fetched(pool, QUERIES["query_store_sizes"], seconds_max=_LOOK_SECONDS_MAX)
    return {row["table"]: row["bytes"] for row in rows}


def _pipeline(runs: Row, minutes: int) -> dict[str, Any]:
    return {
        "requests": runs["requests"],
        "requests_per_minute": round(runs["requests"] / minutes, 3),
        "completed": runs["completed"],
        "failed": runs["failed"],
        "cancelled": runs["cancelled"],
        "failed_rate": _share(runs["failed"], runs["completed"] + runs["failed"]),
        "mean_ms": _rounded(runs["mean_ms"]),
        "p95_ms": _rounded(runs["p95_ms"]),
        "backlog": runs["backlog"],
    }


def _modules(runs: Row, stages: Row, contexts: Row, calls: Sequence[Row]) -> dict[str, Any]:
    of = {stage.value: _stage(stages, calls, stage) for stage in Stage}
    of["analyzer"]["context_found_share"] = _share(runs["with_context"], runs["analyzed"])
    of["assembler"]["mean_context_characters"] = _rounded(contexts["characters"])
    of["archivist"] |= {"stored": stages["stored"], "failed": stages["not_stored"]}
    return of


def _stage(stages: Row, calls: Sequence[Row], stage: Stage) -> dict[str, Any]:
    """Return one stage. `mean_ms`: with everything around the calls; `mean_llm_ms`: of answered calls."""
    own = [row for row in calls if row["stage"] == stage.value]
    answered = _sum(own, "answered")
    return {
        "mean_ms": _rounded(stages[f"{stage.value}_ms"]),
        "mean_llm_ms": _rounded(_sum(own, "answered_ms") / answered) if answered else None,
        "retry_rate": _share(_sum(own, "repeats"), _sum(own, "calls")),
    }


def _llm(calls: Sequence[Row]) -> dict[str, Any]:
    models = sorted({row["model"] for row in calls})
    by_model = [{"model": model, **_totals([row for row in calls if row["model"] == model])} for model in models]
    return {**_totals(calls), "by_model": by_model}


def _totals(calls: Sequence[Row]) -> dict[str, Any]:
    """Return the totals. The cost is of what has a price; null if nothing has."""
    costs = [row["cost_usd"] for row in calls if row["cost_usd"] is not None]
    return {**{name: int(_sum(calls, name)) for name in _COUNTED}, "cost_usd": round(sum(costs), 8) if costs else None}


def _size(row: Row) -> dict[str, int]:
    return {"rows_estimated": row["rows"], "bytes": row["bytes"]}


def _sum(rows: Iterable[Row], name: str) -> float:
    return float(sum(row[name] for row in rows))


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
