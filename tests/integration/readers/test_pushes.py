"""The socket of administrators' pages without a browser: who may have it, and what it sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from highwater.api.dashboard.sign_in import COOKIE
from tests.integration.api_server import Api, running_api

SETTING = "viewer:eye-key,editor:pen-key,admin:root-key,admin:ann-key:ann"
SECONDS = 30


@pytest.fixture(scope="module")
def api(own_settings: Any) -> Iterator[Api]:
    """An API with keys."""
    with running_api(own_settings(HIGHWATER_API_KEYS=SETTING)) as running:
        yield running


def cookie_of(api: Api, key: str) -> str:
    """The cookie of a browser that has signed in."""
    with httpx2.Client(base_url=api.url, timeout=SECONDS) as client:
        assert client.post("/login?next=/read", data={"key": key}).status_code == 303
        return str(client.cookies[COOKIE])


@contextlib.asynccontextmanager
async def socket_of(api: Api, cookie: str, **headers: str) -> AsyncIterator[ClientConnection]:
    """The socket of a browser with this cookie."""
    sent = {"Cookie": f"{COOKIE}={cookie}", **headers}
    async with connect(f"{api.url.replace('http', 'ws', 1)}/read/changes", additional_headers=sent) as socket:
        yield socket


async def heard(socket: ClientConnection) -> Any:
    """The next message."""
    return json.loads(await asyncio.wait_for(socket.recv(), SECONDS))


async def test_it_names_pages_of_leagues(api: Api, stack: Any, codec: Any) -> None:
    """First everything; then what is published, whether or not the key is bound: no feed, no namespace, no content."""
    from highwater.connectors.kafka.producer import AsyncProducer

    producer = AsyncProducer({"bootstrap.servers": stack.kafka}, client_id="test")
    async with socket_of(api, cookie_of(api, "root-key")) as root, socket_of(api, cookie_of(api, "ann-key")) as ann:
        assert [await heard(root), await heard(ann)] == [{"type": "patch"}] * 2
        for key in ("feed:ada", "ns:docs", "x:y", "league:table:pushed"):
            event = {"key": key, "version": 7, "etag": "e", "caused_by": "", "bumped_at": 0}
            await producer.publish("cache.version-bumped", codec.encode("cache.version-bumped", event), key=key)
        wanted = {"type": "patch", "key": "league:table:pushed", "version": 7}
        assert [await heard(root), await heard(ann)] == [wanted] * 2
    await producer.close()


@pytest.mark.parametrize(("key", "code"), [("eye-key", 4403), ("pen-key", 4403), (None, 4401)])
async def test_others_have_none(api: Api, key: str | None, code: int) -> None:
    """A viewer, an editor and a stranger: it closes with the reason before it sends anything."""
    async with socket_of(api, "unknown" if key is None else cookie_of(api, key)) as socket:
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), SECONDS)
        assert socket.close_code == code


async def test_a_key_alone_opens_none(api: Api) -> None:
    """It is for the browser that signed in: without its cookie a key does not count."""
    async with socket_of(api, "", Authorization="Bearer root-key") as socket:
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), SECONDS)
        assert socket.close_code == 4401


async def test_pages_of_other_sites_open_none(api: Api) -> None:
    """A browser sends its cookie with them; the handshake is refused."""
    with pytest.raises(InvalidStatus) as refused:
        async with socket_of(api, cookie_of(api, "root-key"), Origin="https://elsewhere.example"):
            pass
    assert refused.value.response.status_code == 403


async def test_the_server_says_that_it_ends(own_settings: Any) -> None:
    """The socket of an open page is closed with 1001, so that it connects again."""
    with running_api(own_settings(HIGHWATER_API_KEYS=SETTING)) as api:
        async with socket_of(api, cookie_of(api, "root-key")) as socket:
            assert await heard(socket) == {"type": "patch"}
            api.stop()
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(socket.recv(), SECONDS)
            assert socket.close_code == 1001
