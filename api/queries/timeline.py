"""The timeline of a run as it is served: stages with their calls of the language model, events with their log
positions.

Invariant: a pure function of the stored rows, so the same rows give the same bytes. A stage appears once it was begun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import orjson

from highwater.api.core.model_calls import call_document, duration_ms
from highwater.connectors.queries.read_model import RunHistory
from highwater.schemas.envelope import iso_from_ms, iso_from_ms_or_none
from highwater.streams.queries.states import Stage, Status

_Event = Mapping[str, Any]
# The status in which a stage runs, and that in which it has ended; the archivist processes a COMPLETED run.
_WORKS = {
    Stage.ANALYZER: (Status.ANALYZING, Status.ANALYZED),
    Stage.ASSEMBLER: (Status.ASSEMBLING, Status.READY),
    Stage.RESPONDER: (Status.RESPONDING, Status.COMPLETED),
}


def timeline_document(run: RunHistory) -> dict[str, Any]:
    """Return the document."""
    stages = [_stage(stage, run) for stage in Stage]
    calls = run.calls
    return {
        "request_id": run.request_id,
        "user_id": run.user_id,
        "status": run.status,
        "archive_status": run.archive_status,
        "query": run.query,
        "error": run.error,
        "created_at": iso_from_ms(run.created_ms),
        "completed_at": iso_from_ms_or_none(run.ended_ms),
        "duration_ms": duration_ms(run.created_ms, run.ended_ms),
        "restarted_from": run.restarted_from,
        "position": run.position,
        "stages": [stage for stage in stages if stage is not None],
        "events": [_event(event) for event in run.events],
        "sources": served_sources(run.sources),
        "totals": {
            "calls": len(calls),
            "sends": sum(call["sends"] for call in calls),
            "prompt_tokens": sum(call["prompt_tokens"] or 0 for call in calls),
            "completion_tokens": sum(call["completion_tokens"] or 0 for call in calls),
            "cost_usd": _total_cost(calls),
        },
    }


def served_sources(stored: str | None) -> list[dict[str, Any]]:
    """Return the sources of an answer, as they are served: with the log position of each, and times in the common format."""
    sources: list[dict[str, Any]] = orjson.loads(stored) if stored is not None else []
    return [
        {
            ("ts" if name == "ts_ms" else name): (iso_from_ms(value) if name == "ts_ms" else value)
            for name, value in one.items()
        }
        for one in sources
    ]


def _stage(stage: Stage, run: RunHistory) -> dict[str, Any] | None:
    """Return one stage: from its first claim until its result or its failure; None: never begun."""
    calls = [call for call in run.calls if call["stage"] == stage.value]
    started_ms, ended_ms = _span(stage, run.events)
    if started_ms is None and calls:
        started_ms = calls[0]["started_ms"]  # the event has not arrived yet
    if started_ms is None:
        return None
    return {
        "stage": stage.value,
        "started_at": iso_from_ms_or_none(started_ms),
        "ended_at": iso_from_ms_or_none(ended_ms),
        "duration_ms": duration_ms(started_ms, ended_ms),
        "attempts": [call_document(run.request_id, call) for call in calls],
    }


def _span(stage: Stage, events: Sequence[_Event]) -> tuple[int | None, int | None]:
    if stage is Stage.ARCHIVIST:
        ended_ms = next((event["at_ms"] for event in events if event["archive_status"] is not None), None)
        completed_ms = next((event["at_ms"] for event in events if event["status"] == Status.COMPLETED), None)
        return (completed_ms if ended_ms is not None else None), ended_ms
    works, ends = _WORKS[stage]
    started_ms = next((event["at_ms"] for event in events if event["status"] == works), None)
    if started_ms is None:
        return None, None
    ended_ms = next((event["at_ms"] for event in events if event["status"] == ends), None)
    if ended_ms is None and len(events) > 1 and events[-1]["status"] == Status.FAILED:
        # It failed in its current stage; a stage before that had ended.
        ended_ms = events[-1]["at_ms"]
    return started_ms, ended_ms


def _event(event: _Event) -> dict[str, Any]:
    return {
        "status": event["status"],
        "archive_status": event["archive_status"],
        "operation": event["operation"],
        "attempt": event["attempt"],
        "at": iso_from_ms(event["at_ms"]),
        "position": event["position"],
        "error": event["error"],
    }


def _total_cost(calls: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the sum of the known costs; None if no call has a price."""
    costs = [Decimal(str(call["cost_usd"])) for call in calls if call["cost_usd"] is not None]
    return float(sum(costs)) if costs else None
