"""Whether writes are to wait: what has piled up behind the log, against bounds.

A write that is acknowledged and then served minutes later helps nobody, and a backlog without end fills a disk. So the API
refuses writes while the product catches up, with the time to come again. Reads go on. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

# Half a minute would leave a relay that has recovered without work; a second would only be asked again.
RETRY_AFTER_SECONDS = 5
# What undoes, ends or takes back: it lightens the load, or somebody's right depends on it.
NEVER_SHED = frozenset(
    {
        "feeds.user-erased",
        "feeds.insight-retracted",
        "queries.run-controlled",
        "jobs.plan-changed",
        "jobs.role-changed",
        "chunks.ingest-finished",
    }
)


class Reason(StrEnum):
    """What has passed its bound."""

    OUTBOX_ROWS = "outbox_rows"
    OUTBOX_AGE = "outbox_age"
    LAG = "lag"


class Bounds(NamedTuple):
    """Where writes begin to wait."""

    outbox_rows: int
    outbox_age_seconds: float
    lag_events: int


class Load(NamedTuple):
    """What waits: the outbox, and behind each sink the events that it has not accounted for."""

    outbox_rows: int = 0
    outbox_age_seconds: float = 0.0
    lag_events: Mapping[str, int] = {}


class Shed(NamedTuple):
    """Why a write is refused, for its sender."""

    reason: Reason
    detail: str


def judge(load: Load, bounds: Bounds, topic: str, sink: str) -> Shed | None:
    """Why a write to a topic that a sink stores has to wait; None: it has not."""
    if topic in NEVER_SHED:
        return None
    if load.outbox_rows > bounds.outbox_rows:
        return Shed(Reason.OUTBOX_ROWS, f"more than {bounds.outbox_rows:,} events wait in the outbox")
    if load.outbox_age_seconds > bounds.outbox_age_seconds:
        return Shed(
            Reason.OUTBOX_AGE,
            f"an event has waited {load.outbox_age_seconds:,.0f} s in the outbox; the bound is {bounds.outbox_age_seconds:g} s",
        )
    behind = load.lag_events.get(sink, 0)
    if behind > bounds.lag_events:
        return Shed(Reason.LAG, f"{sink} is {behind:,} events behind; the bound is {bounds.lag_events:,}")
    return None
