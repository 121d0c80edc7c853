"""The route that shows how namespaces of chunks age: counts by temperature, marked and archived chunks, and the settings.

Invariant: a caller that is bound to a user or an organization sees open namespaces only.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from highwater.api.chunks.answers import NamespaceLifecycle, NamespaceLifecycles
from highwater.api.chunks.routes_search import SEARCH_TOPICS
from highwater.api.chunks.services import ChunkServices, WiredChunks
from highwater.api.core import conditional
from highwater.api.core.access import OwnedBy, Scope, access
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.guard import Called, GuardedRoute
from highwater.api.core.resources import is_open
from highwater.api.core.services import Wired
from highwater.connectors.chunks import read_model as chunk_reads
from highwater.connectors.chunks.read_model import Lifecycle
from highwater.schemas.envelope import iso_from_ms
from highwater.streams.chunks.identity import check_key_part
from highwater.streams.chunks.passports import PASSPORT_KEYS
from highwater.streams.clock import to_ms
from highwater.streams.identity.rate_limits import RateLimit

router = APIRouter(tags=["chunks"], route_class=GuardedRoute)


@router.get(
    "/api/chunks/lifecycle",
    summary="Get the number of hot, warm, cold, marked and archived chunks",
    response_model=None,
    responses=answer(NamespaceLifecycle, NamespaceLifecycles),
)
@access(Role.VIEWER, Scope.CHUNKS, OwnedBy.NAMESPACE, limit=RateLimit.PLAN, cost=1)
async def get_lifecycle(
    request: Request,
    called: Called,
    services: Wired,
    chunks: WiredChunks,
    ns: Annotated[str | None, Query(description="only this namespace; default: all namespaces")] = None,
) -> Response:
    """Current counts, with the settings of each namespace."""
    if ns is not None:
        check_key_part("ns", ns)
    await services.fresh(request, SEARCH_TOPICS)
    now_ms = services.clock()
    found = await chunk_reads.lifecycles(services.database.require(), ns, now_ms)
    if ns is not None:
        row = found[0].row if found else None
        called.readable_namespace(ns, is_open=is_open(services.passports, ns, row))
    elif not called.is_operator:
        found = [one for one in found if is_open(services.passports, one.row["ns"], one.row)]
    called.note_checked()
    documents = [lifecycle_document(one, now_ms) for one in found]
    document: dict[str, Any] = {"as_of": iso_from_ms(now_ms), "namespaces": documents}
    if ns is not None:
        document = documents[0] if documents else _nothing_held(chunks, ns, now_ms)
    return conditional.uncached(document)


def lifecycle_document(found: Lifecycle, now_ms: int) -> dict[str, Any]:
    """Return the contents of a namespace as they are served. Only `to_delete` and `archived` count chunks that no
    search finds.
    """
    row = found.row
    return {
        "ns": row["ns"],
        "as_of": iso_from_ms(now_ms),
        "chunks": found.chunks,
        "sources": found.sources,
        "hot": found.hot,
        "warm": found.warm,
        "cold": found.cold,
        "without_embedding": found.without_embedding,
        "stale_embedding": found.stale_embedding,
        "to_delete": found.to_delete,
        "archived": found.archived,
        "is_hot": row["is_hot"],
        "queries_per_day": row["queries_per_day"],
        "rated_at": None if row["rated_at"] is None else iso_from_ms(to_ms(row["rated_at"])),
        "dimensions": row["dimensions"],
        "embedding_model": row["embedding_model"],
        "switch": _switch(found),
        "passport": {name: row[name] for name in PASSPORT_KEYS},
    }


def _switch(found: Lifecycle) -> dict[str, Any] | None:
    row = found.row
    if row["next_model"] is None:
        return None
    due_at = None if row["next_due_at"] is None else iso_from_ms(to_ms(row["next_due_at"]))
    return {"embedding_model": row["next_model"], "made": found.next_made, "due_at": due_at}


_COUNTS = (
    *("chunks", "sources", "hot", "warm", "cold", "without_embedding", "stale_embedding", "to_delete", "archived"),
)


def _nothing_held(chunks: ChunkServices, ns: str, now_ms: int) -> dict[str, Any]:
    """Return the answer for a namespace that never had a chunk: what its passport would be."""
    return {
        "ns": ns,
        "as_of": iso_from_ms(now_ms),
        **dict.fromkeys(_COUNTS, 0),
        "is_hot": False,
        "queries_per_day": 0.0,
        "rated_at": None,
        "dimensions": None,
        "embedding_model": None,
        "switch": None,
        "passport": asdict(chunks.passports.of(ns)),
    }
