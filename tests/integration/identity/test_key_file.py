"""API keys in a file under a running API: a rotation becomes active by itself, and ends connections opened with a revoked key."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from highwater.api.core.keys import StoredKey, changing, hash_of, revoked
from highwater.streams.settings import Settings
from tests.integration.api_server import Api, eventually, running_api
from tests.integration.identity.making import status_of

ADA = "33333333-3333-4333-8333-333333333333"


def add(path: Path, name: str, **more: str) -> str:
    """Store a key; the key itself."""
    token = f"hwk_{name}"
    with changing(path) as keys:
        keys.append(StoredKey(name, hash_of(token), "viewer", time.time_ns() // 1_000_000, **more))
    return token


def revoke(path: Path, name: str) -> None:
    """Revoke it."""
    with changing(path) as keys:
        assert revoked(keys, name, time.time_ns() // 1_000_000) is not None


async def until_answered(api: Api, token: str, status: int) -> None:
    """Wait until a key is answered so; within how long stands in `tests/unit/core/test_keys.py`, with a clock that is moved."""

    async def is_so() -> bool:
        return await status_of(api, token, "/api/channels") == status

    await eventually(is_so, f"{token} is answered {status}")


async def test_keys_change_under_a_running_api(
    own_settings: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added and revoked without a restart, beside a key of the settings; a revoked key's socket is closed, its stream ends."""
    monkeypatch.setattr("highwater.api.core.sockets.RECHECK_SECONDS", 0.2)
    monkeypatch.setattr("highwater.api.core.changes.RECHECK_SECONDS", 0.2)
    path = tmp_path / "keys.json"
    old = add(path, "old", user=ADA)
    with running_api(own_settings(HIGHWATER_API_KEYS="admin:root", HIGHWATER_API_KEYS_FILE=str(path))) as api:
        assert await status_of(api, "root", "/api/channels") == 200
        assert await status_of(api, old, "/api/channels") == 200
        assert await status_of(api, old, "/api/users/bob/feed") == 403
        assert await status_of(api, "hwk_other", "/api/channels") == 401
        new = add(path, "new")
        assert await status_of(api, new, "/api/channels") == 200, "known at its first use"
        url = f"{api.url.replace('http', 'ws', 1)}/api/ws"
        async with (
            connect(url, additional_headers={"Authorization": f"Bearer {old}"}) as socket,
            api.client(old) as client,
            client.stream("GET", "/api/changes") as changes,
        ):
            assert changes.status_code == 200
            await socket.send('{"type": "ping"}')
            assert "pong" in await socket.recv()
            revoke(path, "old")
            await until_answered(api, old, 401)
            with pytest.raises(ConnectionClosed) as ending:
                await socket.recv()
            assert ending.value.rcvd is not None
            assert ending.value.rcvd.code == 4401
            assert (await changes.aread()).startswith(b"id: ")
        assert [await status_of(api, token, "/api/channels") for token in (new, "root")] == [200, 200]
