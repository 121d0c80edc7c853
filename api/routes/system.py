"""Health, metrics and the first page: open to everybody, since probes and scrapers carry no keys."""

from __future__ import annotations

from html import escape
from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.errors import problem
from api.services import Wired

router = APIRouter(tags=["system"])

_JSON = "application/json"
_NEVER = {"Cache-Control": "no-store"}
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Highwater</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:3rem auto;padding:0 1rem}}td{{padding:0 1rem 0 0}}
code{{background:#8882;padding:0 .25em}}</style>
<h1>Highwater</h1>
<p>One log position, four uses: where to replay from, the version of the state it made, the tag that state is served under,
and what a reader may wait for.</p>
<p><strong>{state}</strong></p>
<table>{rows}</table>
<p><a href="/docs">API</a> · <a href="/openapi.json">OpenAPI</a> · <a href="/metrics">metrics</a> ·
<a href="/readyz">readiness</a> · <a href="/api/channels">channels</a></p>
<p>Read a feed: <code>curl http://…/api/users/ada/feed</code>. Every answer names the event behind it in
<code>X-Caused-By</code>; send it back as <code>X-Min-Position</code> to read nothing older.</p>
</html>
"""


@router.get("/healthz", summary="The process is alive", response_model=None)
async def healthz() -> Response:
    """Answers as long as the event loop turns."""
    return Response(b'{"status":"alive"}', headers=_NEVER, media_type=_JSON)


@router.get("/readyz", summary="Every part answers, or which does not", response_model=None)
async def readyz(
    services: Wired, exclude: Annotated[list[str] | None, Query(description="parts that do not count")] = None
) -> Response:
    """503 names what is away. With Redis away reads go on: a balancer may ask with `?exclude=redis`."""
    away = {name: reason for name, reason in services.not_ready().items() if name not in (exclude or [])}
    if away:
        detail = "not ready: " + "; ".join(f"{name}: {reason}" for name, reason in sorted(away.items()))
        members = {"ready": False, "not_ready": sorted(away)}
        return problem(503, detail, headers={"Retry-After": "1"}, members=members)
    return Response(orjson.dumps({"ready": True, "not_ready": []}), headers=_NEVER, media_type=_JSON)


@router.get("/metrics", summary="Prometheus metrics", response_model=None)
async def metrics() -> Response:
    """Every metric of this process."""
    return Response(generate_latest(), headers={**_NEVER, "Content-Type": CONTENT_TYPE_LATEST})


@router.get("/", include_in_schema=False, response_model=None)
async def first_page(services: Wired) -> Response:
    """What this is, and whether it is ready."""
    away = services.not_ready()
    parts = ("database", "kafka", "schema_registry", "redis")
    rows = "".join(
        f"<tr><td>{part}</td><td>{'away: ' + escape(away[part]) if part in away else 'ready'}</td></tr>"
        for part in parts
    )
    state = "Not ready" if away else "Ready"
    return HTMLResponse(_PAGE.format(state=state, rows=rows), headers=_NEVER)
