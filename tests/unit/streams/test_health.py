"""The health port of a role: ready, or the reason; and degraded services, which do not make it unready."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx2

from highwater.api.cli.stack import _readiness
from highwater.deploy.local.control import _looked_at
from highwater.deploy.local.part import Addresses
from highwater.deploy.local.probes import degraded_at
from highwater.streams.health import serve_health

STOPPED = {"posts": "t/3 is stopped; `highwater dlq park posts t --partition 3` resumes it"}


async def status_of(unready: Mapping[str, str], degraded: Mapping[str, str]) -> tuple[int, Any, Any]:
    """The answer of /readyz, and the service as `highwater status` shows it."""
    server = await serve_health("127.0.0.1", 0, lambda: unready, lambda: degraded)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/readyz"
    part = {"name": "sinks", "kind": "role", "state": "up", "last_error": None, "ready_url": url}
    try:
        async with httpx2.AsyncClient(trust_env=False) as client:
            answer = await client.get(url)
        return answer.status_code, answer.json(), await asyncio.to_thread(_looked_at, part, Addresses())
    finally:
        server.close()
        await server.wait_closed()


async def test_a_degraded_role_is_ready_and_says_so():
    """200 with the command that corrects it, and `status` shows the part as ready and degraded."""
    code, document, part = await status_of({}, STOPPED)
    assert (code, document) == (200, {"ready": True, "unready": {}, "degraded": STOPPED})
    assert (part["ready"], part["degraded"], _readiness(part)) == (True, STOPPED, "ready, degraded: posts")


async def test_a_role_that_is_not_ready_says_why():
    """503 with both; `status` shows the reason."""
    code, document, part = await status_of({"votes": "joining"}, STOPPED)
    assert (code, document["unready"], document["degraded"]) == (503, {"votes": "joining"}, STOPPED)
    assert (part["ready"], _readiness(part).endswith("answered 503")) == (False, True)


async def test_a_role_in_order_shows_nothing():
    """Ready, and no more."""
    _, document, part = await status_of({}, {})
    assert (document["degraded"], _readiness(part)) == ({}, "ready")


def test_nobody_there_is_not_degraded():
    """An address without a server is not degraded: that it does not answer is reported as its readiness."""
    assert degraded_at("http://127.0.0.1:1/readyz", 1.0) == {}
