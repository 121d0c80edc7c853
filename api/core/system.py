"""Health and metrics: open to everybody, since probes and scrapers carry no keys."""

from __future__ import annotations

from typing import Annotated, Literal

import orjson
from fastapi import APIRouter, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST
from typing_extensions import TypedDict

from highwater.api.core.access import PUBLIC, declared
from highwater.api.core.answers import answer
from highwater.api.core.documentation import problem_response
from highwater.api.core.errors import problem
from highwater.api.core.services import Wired
from highwater.streams.metric_roles import exposition

# Not guarded: they are public, also before the application has started.
router = APIRouter(tags=["system"])

_JSON = "application/json"
_NEVER = {"Cache-Control": "no-store"}
DEGRADED = "Degraded"
_DEGRADED_SAYS = "Names of what works in part, comma-separated; absent when everything works."


class Alive(TypedDict):
    """The process is alive."""

    status: Literal["alive"]


class Readiness(TypedDict):
    """Whether the API is ready; `degraded`: what does not work, by name."""

    ready: bool
    not_ready: list[str]
    degraded: dict[str, str]


@router.get("/healthz", summary="Check that the process is alive", response_model=None, responses=answer(Alive))
@declared(PUBLIC)
async def healthz() -> Response:
    """Answers while the event loop runs."""
    return Response(b'{"status":"alive"}', headers=_NEVER, media_type=_JSON)


@router.get(
    "/readyz",
    summary="Check that the API and its services are ready",
    response_model=None,
    responses={
        200: {
            "description": "Ready. `degraded` names what works only partly.",
            "headers": {DEGRADED: {"description": _DEGRADED_SAYS, "schema": {"type": "string"}}},
            "content": answer(Readiness)[200]["content"],
        },
        503: {
            **problem_response("A required service is unavailable; `not_ready` names it."),
            "headers": {DEGRADED: {"description": _DEGRADED_SAYS, "schema": {"type": "string"}}},
        },
    },
)
@declared(PUBLIC)
async def readyz(
    services: Wired,
    exclude: Annotated[list[str], Query(default_factory=list, description="services to leave out of the check")],
) -> Response:
    """503 names the unavailable services that the API cannot do without.

    `degraded` names what works only partly while the API is ready: unavailable Redis, consumers that have stopped a
    partition because of bad events, with the command that resumes it, a restore in progress. A load balancer for reads
    may use `?exclude=kafka`.
    """
    away = {name: reason for name, reason in services.not_ready().items() if name not in exclude}
    accelerators = {name: text for name, text in services.unavailable_accelerators().items() if name not in exclude}
    degraded = accelerators | await services.degraded.by_name()
    headers = {DEGRADED: ", ".join(sorted(degraded))} if degraded else {}
    if away:
        detail = "not ready: " + "; ".join(f"{name}: {reason}" for name, reason in sorted(away.items()))
        members = {"ready": False, "not_ready": sorted(away), "degraded": degraded}
        return problem(503, detail, headers={"Retry-After": "1", **headers}, members=members)
    document = {"ready": True, "not_ready": [], "degraded": degraded}
    return Response(orjson.dumps(document), headers={**_NEVER, **headers}, media_type=_JSON)


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
@declared(PUBLIC)
async def metrics() -> Response:
    """Every metric of this process."""
    return Response(exposition(), headers={**_NEVER, "Content-Type": CONTENT_TYPE_LATEST})
