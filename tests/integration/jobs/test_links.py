"""Public links of decks: who makes and revokes them, what their readers get, and which views they count."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import httpx2
import orjson
import pytest

from highwater.connectors.jobs import links
from highwater.connectors.redis.keys import LIVE_REQUESTS, key
from highwater.schemas.jobs import VIEW_RECORDED
from tests.integration.api_server import NOW, Api, Seeds, eventually, running_api
from tests.integration.connecting import free_port
from tests.integration.identity.making import organization
from tests.integration.jobs.watching import ADA, BOB, ORG
from tests.integration.records import record_at

KEYS = f"admin:root-key,editor:ada-key:{ADA}:{ORG},viewer:own-key:{ADA}:{ORG},editor:bob-key:{BOB}:bolt"
KEYS += f",viewer:look-key:{BOB}:{ORG}"
SECRET = "<script>alert(1)</script>"
SLIDE = {
    "slide_id": "7b4d3c1e-0000-5000-8000-000000000001", "number": 1, "title": f"One {SECRET}", "bullets": ["why & how"],
    "notes": "only for the speaker", "table": {"header": ["k", "v"], "rows": [["a", "1"]], "rows_total": 1},
    "sources": [{"document": "d" * 64, "name": "budget.xlsx", "heading": "Salaries", "place": 0}],
}  # fmt: skip


@pytest.fixture(scope="module")
async def seeds(seeds: Seeds, redis_url: str) -> Seeds:
    """The organizations of its callers have the most requests per minute."""
    for name in (ORG, "bolt"):
        await organization(redis_url, seeds, name, "enterprise", "active")
    return seeds


@pytest.fixture
async def deck(seeds: Seeds) -> str:
    """A deck of Ada's."""
    made = str(uuid.uuid4())
    query = "INSERT INTO presentations VALUES ($1, $2, $3, 'Plan & more', $4, 'jobs.generation-requested/0/3', $5)"
    await seeds.run(query, made, ORG, ADA, orjson.dumps([SLIDE]).decode(), NOW)
    return made


async def made(api: Api, deck: str, key: str = "ada-key") -> dict[str, Any]:
    """A new link."""
    answer = await api.post(f"/api/presentations/{deck}/links", None, key)
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store"), answer.text
    document: dict[str, Any] = answer.json()
    return document


async def listed(api: Api, deck: str, key: str = "ada-key") -> list[str]:
    """The ids of the links of a deck."""
    return [one["link_id"] for one in (await api.get(f"/api/presentations/{deck}/links", key)).json()["links"]]


async def revoked(api: Api, deck: str, link: str, key: str = "ada-key") -> int:
    """Revoke a link."""
    async with api.client(key) as client:
        return (await client.delete(f"/api/presentations/{deck}/links/{link}")).status_code


async def test_a_link_shows_one_deck_without_a_key(guarded: Api, seeds: Seeds, deck: str) -> None:
    """Its slides, as JSON and as a page without scripts of others; no notes, documents, owners, or ways to other pages."""
    link = await made(guarded, deck)
    assert link["url"] == f"/read/shared/{link['token']}"
    assert len(link["token"]) >= 47  # 256 random bits
    answer = await guarded.get(f"/api/shared/{link['token']}")
    assert answer.json() == {
        "title": "Plan & more",
        "slides": [{name: SLIDE[name] for name in ("number", "title", "bullets", "table")}],
    }
    page = await guarded.get(link["url"])
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<h1>Plan &amp; more</h1>" in page.text
    assert "why &amp; how" in page.text
    assert "<script" not in page.text
    assert "&lt;script&gt;" in page.text
    for hidden in ("only for the speaker", "budget.xlsx", "Salaries", "d" * 64, ORG, ADA, deck, "<a "):
        assert hidden not in page.text, hidden
        assert hidden not in answer.text, hidden
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    for one in (answer, page):
        assert (one.headers["x-robots-tag"], one.headers["cache-control"]) == ("noindex", "no-store")
        assert one.headers["referrer-policy"] == "same-origin"
    assert '<meta name="robots" content="noindex">' in page.text
    # It opens nothing else.
    for path in (f"/api/presentations/{deck}", f"/api/presentations/{deck}/links", f"/api/organizations/{ORG}/jobs"):
        assert (await guarded.get(path, link["token"])).status_code == 401
    stored = await seeds.run("SELECT * FROM presentation_links WHERE presentation_id = $1", deck)
    assert [row["token_hash"] for row in stored] == [hashlib.sha256(link["token"].encode()).hexdigest()]
    assert link["token"] not in str(stored)


async def test_unknown_and_revoked_links_are_answered_alike(guarded: Api, deck: str) -> None:
    """404 at once, with the same words; other links of the deck stay."""
    link, other = await made(guarded, deck), await made(guarded, deck)
    assert await listed(guarded, deck) == [link["link_id"], other["link_id"]]
    assert await revoked(guarded, deck, link["link_id"]) == 204
    assert await revoked(guarded, deck, link["link_id"]) == 404
    assert await listed(guarded, deck) == [other["link_id"]]
    unknown = "hwp_" + "x" * 43
    for address in ("/api/shared/{}", "/read/shared/{}"):
        gone, never, odd = [await guarded.get(address.format(one)) for one in (link["token"], unknown, "%00%FE")]
        assert gone.status_code == never.status_code == 404
        assert gone.content == never.content
        assert odd.status_code in (404, 422)
        assert (await guarded.get(address.format(other["token"]))).status_code == 200


async def test_owners_make_list_and_revoke_links(guarded: Api, deck: str) -> None:
    """An editor of the organization; a viewer only lists and revokes its own; to others the deck is unknown."""
    link = await made(guarded, deck)
    path = f"/api/presentations/{deck}/links"
    codes = [(await guarded.post(path, None, key)).status_code for key in ("own-key", "look-key", "bob-key")]
    assert codes == [403, 403, 404]
    assert (await guarded.post(path)).status_code == 401
    lists = [(await guarded.get(path, key)).status_code for key in ("own-key", "look-key", "bob-key", None)]
    assert lists == [200, 403, 404, 401]
    assert [await revoked(guarded, deck, link["link_id"], key) for key in ("look-key", "bob-key")] == [403, 404]
    assert await revoked(guarded, deck, link["link_id"], "own-key") == 204
    other = str(uuid.uuid4())
    assert (await guarded.post(f"/api/presentations/{other}/links", None, "ada-key")).status_code == 404
    again = await made(guarded, deck)
    assert await revoked(guarded, other, again["link_id"], "root-key") == 404  # the link of another deck
    assert (await guarded.post("/api/presentations/x/links", None, "ada-key")).status_code == 422


async def test_a_deck_has_up_to_fifty_links(guarded: Api, deck: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is 409; after one is revoked there is room again."""
    monkeypatch.setattr(links, "LINKS_MAX", 2)
    first = await made(guarded, deck)
    await made(guarded, deck)
    refused = await guarded.post(f"/api/presentations/{deck}/links", None, "ada-key")
    assert (refused.status_code, refused.json()["detail"]) == (409, "this presentation has 2 links; revoke one first")
    assert await revoked(guarded, deck, first["link_id"]) == 204
    await made(guarded, deck)


@pytest.mark.requirement("R2.42")
async def test_a_link_counts_its_views(stack: Any, guarded: Api, codec: Any, redis: Any, deck: str) -> None:
    """Each read of its page or its JSON: in the key that is shown, and as an event; not a HEAD or a 404."""
    link, key = await made(guarded, deck), f"presentation_view_count:{deck}"
    await guarded.get(link["url"])
    await guarded.get(f"/api/shared/{link['token']}")
    assert await redis.get(key) == "2"
    async with guarded.client() as client:
        heads = [await client.head(path) for path in (link["url"], f"/api/shared/{link['token']}")]
    assert [one.status_code for one in heads] == [200, 200]
    await guarded.get(f"/api/shared/{link['token']}x")
    assert await redis.get(key) == "2"
    assert (await guarded.get(f"/api/presentations/{deck}", "ada-key")).json()["view_count"] == 2
    shown = await guarded.post(f"/api/presentations/{deck}/views", None, "ada-key")
    topic, partition, offset = shown.json()["positions"][0].split("/")
    earlier = record_at(stack, f"{topic}/{partition}/{int(offset) - 1}")
    assert topic == VIEW_RECORDED
    assert codec.decode(VIEW_RECORDED, earlier.value())["presentation_id"] == deck


async def test_a_deck_is_shown_while_kafka_is_unavailable(
    own_settings: Any, guarded: Api, redis: Any, deck: str
) -> None:
    """The reader does not wait for the log; the view is not counted."""
    link = await made(guarded, deck)
    with running_api(own_settings(KAFKA_BOOTSTRAP_SERVERS=f"127.0.0.1:{free_port()}"), is_awaited=False) as api:

        async def is_shown() -> bool:
            return (await api.get(link["url"])).status_code == 200

        await eventually(is_shown, "PostgreSQL is there")
        assert (await api.get(f"/api/presentations/{deck}")).json()["view_count"] == 0
    assert await redis.get(f"presentation_view_count:{deck}") in (None, "0")


async def test_readers_of_links_are_limited_by_address(own_settings: Any, deck: str, guarded: Api, redis: Any) -> None:
    """As those of live pages: over the limit 429 with `Retry-After`, for a page too."""
    link = await made(guarded, deck)
    await redis.delete(key(LIVE_REQUESTS, address="127.0.0.1"))  # of the tests before this
    with running_api(own_settings(HIGHWATER_API_KEYS=KEYS, HIGHWATER_LIVE_REQUESTS_MAX="2")) as api:
        codes = [(await api.get(link["url"])).status_code for _ in range(2)]
        refused = await api.get(link["url"])
    assert codes == [200, 200]
    assert (refused.status_code, "retry-after" in refused.headers) == (429, True)


async def test_a_deck_takes_its_links_with_it(guarded: Api, seeds: Seeds, deck: str) -> None:
    """The erasure of its owner deletes them."""
    link = await made(guarded, deck)
    await seeds.run("DELETE FROM presentations WHERE presentation_id = $1", deck)
    assert (await guarded.get(link["url"])).status_code == 404
    assert await seeds.run("SELECT 1 FROM presentation_links WHERE presentation_id = $1", deck) == []


def test_the_page_of_a_deck_has_its_links(guarded: Api, deck: str) -> None:
    """An editor makes one by a form, opens it without a key, and revokes it; a viewer sees no form."""
    page = f"/read/decks/{deck}"
    with httpx2.Client(base_url=guarded.url, timeout=60) as owner, httpx2.Client(base_url=guarded.url) as anybody:
        assert owner.post("/login?next=/read", data={"key": "ada-key"}).status_code == 303
        assert "Make a public link" in owner.get(page).text
        shown = owner.post(f"{page}/links")
        address = shown.text.split(f'<a href="{guarded.url}')[1].split('"')[0]
        assert (shown.status_code, anybody.get(address).status_code) == (201, 200)
        link = owner.get(page).text.split('name="link" value="')[1].split('"')[0]
        gone = owner.post(f"{page}/revoke", data={"link": link})
        assert (gone.status_code, gone.headers["location"]) == (303, page)
        assert anybody.get(address).status_code == 404
        assert 'name="link"' not in owner.get(page).text
        assert anybody.post(f"{page}/links").headers["location"].startswith("/login")
    with httpx2.Client(base_url=guarded.url, timeout=60) as viewer:
        assert viewer.post("/login?next=/read", data={"key": "own-key"}).status_code == 303
        assert "public link" not in viewer.get(page).text
