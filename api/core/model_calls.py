"""Converts a call of a language model for the timelines of queries and jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from highwater.schemas.envelope import iso_from_ms_or_none
from highwater.streams.engines.work import call_key


def call_document(run_id: str, call: Mapping[str, Any]) -> dict[str, Any]:
    """One attempt, from its stored row; null if unknown.

    Args:
        run_id: the query or job that made the call.
        call: its row; times in ms since 1970, the cost as a number of JSON or as PostgreSQL's exact one.
    """
    cost = call["cost_usd"]
    return {
        "attempt": call["attempt"],
        "key": call_key(run_id, call["stage"], call["attempt"]),
        "model": call["model"],
        "sends": call["sends"],
        "started_at": iso_from_ms_or_none(call["started_ms"]),
        "ended_at": iso_from_ms_or_none(call["ended_ms"]),
        "duration_ms": duration_ms(call["started_ms"], call["ended_ms"]),
        "outcome": call["outcome"],
        "error": call["error"],
        "prompt_tokens": call["prompt_tokens"],
        "completion_tokens": call["completion_tokens"],
        "cost_usd": float(cost) if isinstance(cost, Decimal) else cost,
    }


def duration_ms(start_ms: int | None, end_ms: int | None) -> int | None:
    """Return the duration, never negative: the clock may have been set back. None: not begun, or not ended."""
    return None if start_ms is None or end_ms is None else max(0, end_ms - start_ms)
