"""The fast path of a connection for feeds: the same answers as the usual path, to the same callers only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from highwater.streams.telemetry import CONDITIONAL_GETS
from tests.integration.api_server import Api, Seeds, cluster, eventually

KEYS = "viewer:eye,viewer:ada-key:ada,viewer:bob-key:bob"
PATHS = ("feed", "clusters")


@contextmanager
def _without_asgi(api: Api) -> Iterator[None]:
    """Nothing of a request gets past the connection."""
    traces = api.app.traces

    async def refuse(*_: Any) -> None:
        raise AssertionError("left to ASGI")

    api.app.traces = refuse
    try:
        yield
    finally:
        api.app.traces = traces


@contextmanager
def _without_short_way(api: Api) -> Iterator[None]:
    """Every request is left to ASGI."""
    short_feeds, api.app.short_feeds = api.app.short_feeds, None
    try:
        yield
    finally:
        api.app.short_feeds = short_feeds


async def _made(client: httpx2.AsyncClient, seeds: Seeds, user: str) -> dict[str, str]:
    """The tags of a user's pages, after a rebuild."""
    ids = await seeds.channel(f"quick-{user}", 4)
    await seeds.rebuild(user, [cluster("a", ids)])
    return {name: (await client.get(f"/api/users/{user}/{name}")).headers["etag"] for name in PATHS}


def _said(answer: httpx2.Response) -> tuple[int, dict[str, str], bytes]:
    others = ("date", "x-request-id")
    return answer.status_code, {k: v for k, v in answer.headers.items() if k not in others}, answer.content


async def _eventually_quick(api: Api, client: httpx2.AsyncClient, path: str, fields: dict[str, str]) -> None:
    """Wait until Redis serves the page: a recent change counts for two seconds."""

    async def is_quick() -> bool:
        await client.get(path, headers=fields)
        with _without_asgi(api):
            return (await client.get(path, headers=fields)).status_code == 304

    await eventually(is_quick, "a connection answers")


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_it_is_answered_as_ever(api: Api, seeds: Seeds, name: str, method: str) -> None:
    """The same status, fields and count, over a connection that knows the bytes and one that does not."""
    user = f"quick-{name}-{method.lower()}"
    async with api.client() as client:
        path, tags = f"/api/users/{user}/{name}", await _made(client, seeds, user)
        fields = {"If-None-Match": tags[name]}
        with _without_short_way(api):
            usual = _said(await client.request(method, path, headers=fields))
        await _eventually_quick(api, client, path, fields)
        counted = CONDITIONAL_GETS.labels(name, "not_modified")
        before = counted._value.get()
        assert [_said(await client.request(method, path, headers=fields)) for _ in range(3)] == [usual] * 3
        assert counted._value.get() == before + 3
        assert usual[0] == 304


async def test_what_it_cannot_know_is_left_to_asgi(api: Api, seeds: Seeds) -> None:
    """Another version, none, a query, a position, a user in another spelling; and the connection stays open."""
    async with api.client() as client:
        tags = await _made(client, seeds, "quick-rest")
        path = "/api/users/quick-rest/feed"
        await _eventually_quick(api, client, path, {"If-None-Match": tags["feed"]})
        for fields in ({}, {"If-None-Match": '"x"'}):
            assert (await client.get(path, headers=fields)).status_code == 200
        assert (await client.get(f"{path}?since=1", headers={"If-None-Match": tags["feed"]})).status_code == 200
        assert (
            await client.get("/api/users/quick%2Drest/feed", headers={"If-None-Match": tags["feed"]})
        ).status_code == 304
        assert (await client.get("/api/users/nobody%20here/feed", headers={"If-None-Match": "*"})).status_code == 304


async def test_a_new_version_is_shown_as_soon_as_ever(api: Api, seeds: Seeds) -> None:
    """A client that polls over one connection gets a rebuilt feed, and never an older one after it."""
    async with api.client() as client:
        tags = await _made(client, seeds, "quick-new")
        path = "/api/users/quick-new/feed"
        await _eventually_quick(api, client, path, {"If-None-Match": tags["feed"]})
        ids = await seeds.channel("quick-newer", 4)
        await seeds.rebuild("quick-new", [cluster("a", ids[:2]), cluster("b", ids[2:])])
        found: list[str] = []

        async def is_new() -> bool:
            answer = await client.get(path, headers={"If-None-Match": tags["feed"]})
            if answer.status_code == 200:
                found.append(answer.headers["etag"])
            return bool(found)

        await eventually(is_new, "the new version is shown")
        for _ in range(5):
            answer = await client.get(path, headers={"If-None-Match": tags["feed"]})
            assert (answer.status_code, answer.headers["etag"]) == (200, found[0])
        assert (await client.get(path, headers={"If-None-Match": found[0]})).status_code == 304


async def test_it_is_answered_to_whom_it_belongs(guarded: Api, seeds: Seeds) -> None:
    """A key that is bound to another user is refused, however often the page was answered to its own."""
    async with guarded.client("ada-key") as ada, guarded.client("bob-key") as bob, guarded.client("eye") as eye:
        tags = await _made(ada, seeds, "ada")
        fields = {"If-None-Match": tags["feed"]}
        path = "/api/users/ada/feed"
        for client in (ada, eye):
            assert (await client.get(path)).status_code == 200
            await _eventually_quick(guarded, client, path, fields)
        assert (await bob.get("/api/users/bob/feed")).status_code == 200
        for _ in range(3):
            assert (await bob.get(path, headers=fields)).status_code == 403
            assert (await ada.get(path, headers=fields)).status_code == 304
        async with guarded.client() as nobody:
            assert (await nobody.get(path, headers=fields)).status_code == 401
