"""Whether writes have to wait: the backlog behind the log, against limits.

A write that is acknowledged and then served minutes later helps nobody, and an unlimited backlog fills a disk. So the
API refuses writes while the product catches up, with the time to retry. Reads continue. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

# Half a minute would leave a recovered relay without work; a second would only be repeated.
RETRY_AFTER_SECONDS = 5
# Actions that undo, end or retract: they reduce the load, or somebody's right depends on them.
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
    """What has exceeded its limit."""

    OUTBOX_ROWS = "outbox_rows"
    OUTBOX_AGE = "outbox_age"
    LAG = "lag"


class Bounds(NamedTuple):
    """The limits at which writes begin to wait."""

    outbox_rows: int
    outbox_age_seconds: float
    lag_events: int


class Load(NamedTuple):
    """The backlog: the outbox, and for each sink the events that it has not accounted for."""

    outbox_rows: int = 0
    outbox_age_seconds: float = 0.0
    lag_events: Mapping[str, int] = {}


class Shed(NamedTuple):
    """Why a write is refused, for its sender."""

    reason: Reason
    detail: str


def judge(load: Load, bounds: Bounds, topic: str, sink: str) -> Shed | None:
    """Return why a write to a topic that a sink stores has to wait; None: it need not."""
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
