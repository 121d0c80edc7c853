"""Health and metrics: open to everybody, since probes and scrapers carry no keys."""

from __future__ import annotations

from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from highwater.api.core.access import PUBLIC, declared
from highwater.api.core.errors import problem
from highwater.api.core.services import Wired

# Not guarded: they are for everybody, also before the application has started.
router = APIRouter(tags=["system"])

_JSON = "application/json"
_NEVER = {"Cache-Control": "no-store"}


@router.get("/healthz", summary="The process is alive", response_model=None)
@declared(PUBLIC)
async def healthz() -> Response:
    """Answers as long as the event loop turns."""
    return Response(b'{"status":"alive"}', headers=_NEVER, media_type=_JSON)


@router.get("/readyz", summary="Every part answers, or which does not", response_model=None)
@declared(PUBLIC)
async def readyz(
    services: Wired, exclude: Annotated[list[str], Query(default_factory=list, description="parts that do not count")]
) -> Response:
    """503 names what is unavailable. With Redis away reads go on: a balancer may ask with `?exclude=redis`.

    `degraded` names consumers that have stopped a partition for bad events, with the command that resumes it; it is no 503.
    """
    away = {name: reason for name, reason in services.not_ready().items() if name not in exclude}
    degraded = await services.degraded.by_group()
    if away:
        detail = "not ready: " + "; ".join(f"{name}: {reason}" for name, reason in sorted(away.items()))
        members = {"ready": False, "not_ready": sorted(away), "degraded": degraded}
        return problem(503, detail, headers={"Retry-After": "1"}, members=members)
    document = {"ready": True, "not_ready": [], "degraded": degraded}
    return Response(orjson.dumps(document), headers=_NEVER, media_type=_JSON)


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
@declared(PUBLIC)
async def metrics() -> Response:
    """Every metric of this process."""
    return Response(generate_latest(), headers={**_NEVER, "Content-Type": CONTENT_TYPE_LATEST})
