"""Sessions as a client opens and uses them, and organizations as their sink stores them."""

from __future__ import annotations

from typing import Any

import httpx2
from redis.asyncio import Redis

from tests.integration.api_server import NOW, Api, Seeds


async def open_session(client: httpx2.AsyncClient, user: str, **more: Any) -> dict[str, Any]:
    """A new one."""
    response = await client.post("/api/sessions", json={"user_id": user, **more})
    assert response.status_code == 201, response.text
    return response.json()


async def status_of(api: Api, token: str, path: str) -> int:
    """The status of a path for a token."""
    async with api.client(token) as client:
        return (await client.get(path)).status_code


async def organization(redis_url: str, seeds: Seeds, name: str, plan: str, status: str) -> None:
    """An organization as its sink stores it, and no copy of its limits."""
    await seeds.run(
        "INSERT INTO organizations VALUES ($1, $2, $3, NULL, 1, 'p', $4) ON CONFLICT (organization_id) DO UPDATE SET "
        "plan = excluded.plan, subscription_status = excluded.subscription_status",
        name, plan, status, NOW,
    )  # fmt: skip
    async with Redis.from_url(redis_url) as redis:
        await redis.delete(f"plan_limits:{name}")
