"""Sessions as a client opens and uses them."""

from __future__ import annotations

from typing import Any

import httpx

from tests.integration.api_server import Api


async def open_session(client: httpx.AsyncClient, user: str, **more: Any) -> dict[str, Any]:
    """A new one."""
    response = await client.post("/api/sessions", json={"user_id": user, **more})
    assert response.status_code == 201, response.text
    return response.json()


async def status_of(api: Api, token: str, path: str) -> int:
    """What a path answers a token."""
    async with api.client(token) as client:
        return (await client.get(path)).status_code
