"""Health and metrics: open to everybody, since probes and scrapers carry no keys."""

from __future__ import annotations

from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from highwater.api.core.errors import problem
from highwater.api.core.services import Wired

router = APIRouter(tags=["system"])

_JSON = "application/json"
_NEVER = {"Cache-Control": "no-store"}


@router.get("/healthz", summary="The process is alive", response_model=None)
async def healthz() -> Response:
    """Answers as long as the event loop turns."""
    return Response(b'{"status":"alive"}', headers=_NEVER, media_type=_JSON)


@router.get("/readyz", summary="Every part answers, or which does not", response_model=None)
async def readyz(
    services: Wired, exclude: Annotated[list[str], Query(default_factory=list, description="parts that do not count")]
) -> Response:
    """503 names what is away. With Redis away reads go on: a balancer may ask with `?exclude=redis`."""
    away = {name: reason for name, reason in services.not_ready().items() if name not in exclude}
    if away:
        detail = "not ready: " + "; ".join(f"{name}: {reason}" for name, reason in sorted(away.items()))
        members = {"ready": False, "not_ready": sorted(away)}
        return problem(503, detail, headers={"Retry-After": "1"}, members=members)
    return Response(orjson.dumps({"ready": True, "not_ready": []}), headers=_NEVER, media_type=_JSON)


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics() -> Response:
    """Every metric of this process."""
    return Response(generate_latest(), headers={**_NEVER, "Content-Type": CONTENT_TYPE_LATEST})
