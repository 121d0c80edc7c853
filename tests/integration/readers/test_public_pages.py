"""Pages of leagues where the installation makes them public: without a key by their parts and documents, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.integration.api_server import Api, Seeds, running_api
from tests.integration.readers.test_pages import SECONDS, signed_in

SETTING = "viewer:eye-key,viewer:ann-key:ann,admin:root-key"
AD = """INSERT INTO league_ads (ad_id, payload, changed_at, changed_ms, position)
VALUES ('a', '{"title": "<i>Buy</i>", "url": "https://example.org"}', now(), 1, 'league.ad-changed/0/0')"""


@pytest.fixture(scope="module")
async def ad(seeds: Seeds) -> None:
    """An advertisement."""
    await seeds.run(AD)


@pytest.fixture(scope="module")
def api(own_settings: Any, ad: None) -> Iterator[Api]:
    """An API with keys whose leagues are public."""
    with running_api(own_settings(HIGHWATER_API_KEYS=SETTING, HIGHWATER_PUBLIC_LEAGUE="on")) as running:
        yield running


@pytest.fixture
def anybody(api: Api) -> Iterator[httpx2.Client]:
    """A browser that has not signed in."""
    with httpx2.Client(base_url=api.url, timeout=SECONDS) as client:
        yield client


def test_a_reader_needs_no_key(anybody: httpx2.Client) -> None:
    """The page has parts, a way to sign in and no socket; parts are conditional, and their documents may be cached."""
    page = anybody.get("/read")
    assert page.status_code == 200, page.text
    assert "&lt;i&gt;Buy&lt;/i&gt;" in page.text
    assert '<a href="/login?next=%2Fread">Sign in</a>' in page.text
    assert "data-changes" not in page.text
    parts = re.findall(r'data-part="([^"]+)"', page.text)
    assert len(parts) == 3
    for part in (found.replace("&amp;", "&") for found in parts):
        first = anybody.get(part)
        assert first.status_code == 200, part
        again = anybody.get(part, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for path in ("/api/leaderboard", "/api/ads", "/api/matches/live", "/api/league"):
        answer = anybody.get(path)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache"), path
    assert anybody.get("/api/ads").headers["cdn-cache-control"].startswith("public")


def test_everything_else_needs_one(anybody: httpx2.Client) -> None:
    """Forms and feeds lead to the sign-in; a user's data, counts, writes and changes are 401."""
    for path in ("/read/feed", "/topics", "/match", "/league", "/"):
        assert anybody.get(path).status_code == 303, path
    form = anybody.post("/read/matches/m/votes", data={"choice": "home"})
    assert (form.status_code, form.headers["location"]) == (303, "/login?next=%2Fread%2Fmatches%2Fm")
    private = (
        "/api/predictions",
        "/api/users/ann/achievements",
        "/api/league/admin/stats",
        "/api/changes",
        "/api/channels",
    )
    for path in (*private, "/read?part=achievements&user=ann", "/read/feed?part=1&user=ann"):
        assert anybody.get(path).status_code == 401, path
    assert anybody.post("/api/matches/m/finalize", json={"home_goals": 1, "away_goals": 0}).status_code == 401
    assert anybody.put("/api/ads/a", json={}).status_code == 401


def test_a_wrong_key_is_no_missing_key(anybody: httpx2.Client) -> None:
    """It is refused here too, so that its sender notices; a document of a user is private for its key."""
    for path in ("/api/ads", "/api/league"):
        assert anybody.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
    own = anybody.get("/api/users/ann/achievements", headers={"authorization": "Bearer ann-key"})
    assert own.headers["cache-control"].startswith("private")


def test_who_signs_in_sees_more(api: Api) -> None:
    """A user's key has its achievements on the first page; another reader sees those of the user in the address."""
    with signed_in(api, "ann-key") as ann:
        page = ann.get("/read").text
        assert ("Achievements of ann" in page, '<a href="/logout">' in page) == (True, True)
    with signed_in(api, "eye-key") as reader:
        assert "Achievements of" not in reader.get("/read").text
        assert "Achievements of bob" in reader.get("/read?user=bob").text
        missing = reader.get("/read?part=nothing")
        assert (missing.status_code, missing.json()["detail"]) == (
            404, "this page has no part 'nothing'; it has live, leaderboard, ads",
        )  # fmt: skip


def test_a_page_of_the_rating_that_does_not_exist(anybody: httpx2.Client) -> None:
    """The rest of the page is there, with the API's words in its place; nonsense is the first page."""
    assert "There is no page of the rating &#x27;9&#x27;." in anybody.get("/read?rating=9").text
    assert "No prediction is rated yet." in anybody.get("/read?rating=x").text


async def test_a_list_without_a_key_is_limited_by_address(own_settings: Any) -> None:
    """It queries PostgreSQL each time; with a key of the operator it is not limited."""
    more = {"HIGHWATER_LIVE_REQUESTS_MAX": 2, "HIGHWATER_TRUSTED_PROXIES": "127.0.0.0/8"}
    settings = own_settings(HIGHWATER_API_KEYS=SETTING, HIGHWATER_PUBLIC_LEAGUE="on", **more)
    address = {"x-forwarded-for": "198.51.100.7"}
    with running_api(settings) as api, httpx2.Client(base_url=api.url, timeout=SECONDS, headers=address) as client:
        assert [client.get("/api/league").status_code for _ in range(3)] == [200, 200, 429]
        key = {"authorization": "Bearer eye-key"}
        assert [client.get("/api/league", headers=key).status_code for _ in range(3)] == [200] * 3
