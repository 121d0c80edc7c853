"""Requests to rebuild documents, from sinks that decide nothing: they go to the outbox in the transaction of the
change.

Invariant: requested documents are marked as changed in the same transaction, so that the change shows on all pages at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.outbox import OutboxRow
from highwater.connectors.pages.changes import note_changes
from highwater.connectors.pages.forms import pages_of_former_forms
from highwater.connectors.pages.versions import position_of
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec
from highwater.schemas.league import REFRESH_REQUESTED, RefreshRequested
from highwater.streams.league.resources import LEAGUE_RULES
from highwater.streams.pages.kinds import Resource

# Documents in one request: 64 KiB of keys.
DOCUMENTS_MAX = 1_000


class RefreshRequest(NamedTuple):
    """Documents of a scope to rebuild or to delete; `caused_by` is the position of the event behind it, "" without one."""

    scope: str
    documents: Sequence[Resource]
    reason: str
    caused_by: str
    dropped: Sequence[Resource] = ()


async def request_refreshes(
    tx: Connection, codec: Codec, requests: Sequence[RefreshRequest], *, source: str, now_ms: int
) -> None:
    """Request documents in the transaction that changed their facts."""
    await note_changes(tx, (document.key for request in requests for document in request.documents))
    await outbox.add(tx, [_row(codec, request, f"/connectors/{source}", now_ms) for request in requests])


def _row(codec: Codec, request: RefreshRequest, source: str, now_ms: int) -> OutboxRow:
    event: RefreshRequested = {
        "scope": request.scope,
        "keys": list(dict.fromkeys(document.key for document in request.documents)),
        "dropped": [document.key for document in request.dropped],
        "reason": request.reason,
        "planned_at": now_ms,
    }
    cause = position_of(request.caused_by)
    return outbox.event_row(codec, REFRESH_REQUESTED, event, source=source, now_ms=now_ms, caused_by=cause)


async def renew_former_pages(tx: Connection, codec: Codec, *, now_ms: int) -> None:
    """Request the stored pages that an earlier release built in another form."""
    pages = await pages_of_former_forms(tx, LEAGUE_RULES)
    parts = [pages[start : start + DOCUMENTS_MAX] for start in range(0, len(pages), DOCUMENTS_MAX)]
    requests = [RefreshRequest("forms", part, "form-changed", "") for part in parts]
    await request_refreshes(tx, codec, requests, source="materializers/documents", now_ms=now_ms)
