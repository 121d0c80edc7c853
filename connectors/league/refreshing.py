"""Requests to make documents anew, from sinks with nothing to decide: they go to the outbox of the change itself."""

from __future__ import annotations

from collections.abc import Iterable

from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.outbox import OutboxRow
from highwater.schemas.codec import Codec
from highwater.schemas.league import REFRESH_REQUESTED, RefreshRequested
from highwater.schemas.positions import parse_position
from highwater.streams.pages.kinds import Resource


def refresh_row(
    codec: Codec,
    scope: str,
    documents: Iterable[Resource],
    *,
    dropped: Iterable[Resource] = (),
    reason: str,
    source: str,
    now_ms: int,
    caused_by: str,
) -> OutboxRow:
    """One request. `caused_by` is the position of the event behind it."""
    event: RefreshRequested = {
        "scope": scope,
        "keys": list(dict.fromkeys(document.key for document in documents)),
        "dropped": [document.key for document in dropped],
        "reason": reason,
        "planned_at": now_ms,
    }
    cause = parse_position(caused_by)
    return outbox.event_row(
        codec, REFRESH_REQUESTED, event, source=f"/connectors/{source}", now_ms=now_ms, caused_by=cause
    )
