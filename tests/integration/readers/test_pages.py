"""Readers' pages over HTTP, without a browser: who gets them, their files, their conditions, and that nothing else is loaded."""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
import uuid
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from highwater.api.dashboard.mount import DashboardRoute
from tests.integration.api_server import Api, Seeds, cluster, running_api
from tests.integration.queries.pipeline import store_run

SETTING = "viewer:eye-key,viewer:ann-key:ann,admin:root-key"
SECONDS = 60


@pytest.fixture(scope="module")
def settings(own_settings: Any) -> Any:
    """The settings of an API with keys."""
    return own_settings(HIGHWATER_API_KEYS=SETTING)


@pytest.fixture(scope="module")
def api(settings: Any) -> Iterator[Api]:
    """An API with keys, and no sink."""
    with running_api(settings) as running:
        yield running


@contextlib.contextmanager
def signed_in(api: Api, key: str) -> Iterator[httpx2.Client]:
    """A browser that has signed in."""
    with httpx2.Client(base_url=api.url, timeout=SECONDS) as client:
        assert client.post("/login?next=/read", data={"key": key}).status_code == 303
        yield client


def dashboard_of(api: Api) -> Any:
    """The dashboard of the application."""
    (route,) = [one for one in api.app.router.routes if isinstance(one, DashboardRoute)]
    return route._dashboard


def test_nobody_unknown_gets_a_page(api: Api) -> None:
    """A page leads to the form and back; a part is 401 as a problem; a form leads to the page that it stands on."""
    with httpx2.Client(base_url=api.url, timeout=SECONDS) as nobody:
        page = nobody.get("/read/league/a%2Fb/stats?x=1")
        assert (page.status_code, page.headers["location"]) == (
            303,
            "/login?next=%2Fread%2Fleague%2Fa%252Fb%2Fstats%3Fx%3D1",
        )
        part = nobody.get("/read/league/s/table?part=1")
        assert (part.status_code, part.headers["content-type"]) == (401, "application/problem+json")
        form = nobody.post("/read/matches/m/votes", data={"choice": "home"})
        assert (form.status_code, form.headers["location"]) == (303, "/login?next=%2Fread%2Fmatches%2Fm")


def test_readers_do_not_load_the_dashboard(api: Api) -> None:
    """Neither the form nor its icon, which browsers request by themselves, nor any of its pages."""
    with signed_in(api, "eye-key") as reader:
        icon = reader.get("/favicon.ico")
        assert (icon.status_code, icon.headers["content-type"]) == (200, "image/svg+xml")
        assert len(icon.content) < 1_000
        for path in ("/login", "/read", "/read/league/none", "/read/matches/none"):
            assert reader.get(path).status_code in (200, 404), path
    assert dashboard_of(api)._inner is None


def test_an_error_is_a_page(api: Api) -> None:
    """With the status of the API, its words, and the way to other pages; a wrong method says the right one."""
    with signed_in(api, "eye-key") as reader:
        for path, words in (
            ("/read/league/none", "no season"),
            ("/read/league/none/nothing", "A season has no page"),
            ("/read/matches/none", "no match"),
            ("/read/league/none/live", "A season has no page"),
        ):
            answer = reader.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8"), path
            assert words in answer.text
            assert '<a href="/read">' in answer.text
            assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert reader.get("/read/league/none/table?part=1").headers["content-type"] == "application/problem+json"
        refused = reader.post("/read/league/none", data={})
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
        assert reader.get("/read/elsewhere", headers={"accept": "text/html"}).status_code == 404


def test_a_feed_is_that_of_the_reader(api: Api) -> None:
    """A key that is bound to a user shows that user's feed, for any user in the address; other readers get
    a form for the user.
    """
    with signed_in(api, "ann-key") as ann:
        own = ann.get("/read/feed?user=bob")
        assert (own.status_code, "Your feed" in own.text, "bob" in own.text) == (200, True, False)
        part = ann.get("/read/feed?part=1&user=bob")
        assert part.headers["etag"]
        again = ann.get("/read/feed?part=1", headers={"if-none-match": part.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert "<form" not in own.text  # a viewer neither asks nor has decks made
    with signed_in(api, "eye-key") as anybody:
        assert "Whose feed" in anybody.get("/read/feed").text
        assert "Feed of bob" in anybody.get("/read/feed?user=bob").text


def test_a_delay_leads_the_page_of_a_feed(api: Api, settings: Any) -> None:
    """With its reason, while the machine fails the reader's rebuilds; another reader's page has no such line."""
    delayed = (
        "INSERT INTO user_stats (user_id, delayed_at, delay_reason, delays) VALUES ('ann', now(), 'no <memory>', 1)"
    )
    asyncio.run(Seeds(settings.database).run(delayed))
    with signed_in(api, "ann-key") as ann:
        delay = '<p class="note">Rebuilds are delayed: <span lang="en">no &lt;memory&gt;</span>.</p>'
        assert delay in ann.get("/read/feed").text
    asyncio.run(Seeds(settings.database).run("DELETE FROM user_stats WHERE user_id = 'ann'"))
    with signed_in(api, "eye-key") as anybody:
        assert "delayed" not in anybody.get("/read/feed?user=bob").text


def test_a_visit_is_remembered_in_cookies_of_the_feed(api: Api) -> None:
    """The version that was seen, and that at the beginning of the visit; nothing else can read them, and a wrong one is
    ignored.
    """
    with signed_in(api, "ann-key") as ann:
        fields = ann.get("/read/feed").headers.get_list("set-cookie")
        assert [re.sub(r"_[0-9a-f]{8}=", "=", one.partition(";")[0]) for one in fields] == [
            "highwater_seen=0",
            "highwater_visit=0",
        ]
        assert all("HttpOnly" in one and "Path=/read/feed" in one and "SameSite=strict" in one for one in fields)
        name = fields[1].partition("=")[0]
        for wrong in ("9", "x", "-1", "9" * 400):
            ann.cookies.set(name, wrong, path="/read/feed")
            answer = ann.get("/read/feed")
            assert (answer.status_code, 'data-since="0"' in answer.text) == (200, True), wrong


def test_a_visit_begins_with_what_is_new(api: Api, settings: Any) -> None:
    """Not on a first visit; later it comes before the feed, also alone and conditionally, with the version of the last visit;
    a deck of it can be requested as of a cluster.
    """
    seeds = Seeds(settings.database)

    async def version(*since: int) -> None:
        ids = await seeds.channel("news", len(since))
        await seeds.rebuild("eve", [cluster("a", ids, since=since, changed=max(since))])

    asyncio.run(version(1))
    with signed_in(api, "eye-key") as reader:
        first = reader.get("/read/feed?user=eve").text
        assert "What is new" not in first
        assert '<a href="/api/users/eve/digest/atom">Atom</a>' in first
        asyncio.run(version(1, 2))
        reader.cookies.delete(next(name for name in reader.cookies if name.startswith("highwater_visit_")))
        shown = reader.get("/read/feed?user=eve").text
        assert shown.index("<h2>What is new</h2>") < shown.index("<article")
        assert "1 new insight · 1 cluster" in shown
        address = html.unescape(re.findall(r'data-part="([^"]*part=digest[^"]*)"', shown)[0])
        assert address == "/read/feed?user=eve&part=digest&since=1&lang=en"
        part = reader.get(address)
        assert part.text in shown
        again = reader.get(address, headers={"if-none-match": part.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        form = reader.get("/read/feed/deck?user=eve&digest=1").text
        assert '<input type="hidden" name="digest" value="1">' in form
        assert "Make a deck: What is new: about a</h1>" in form
        assert reader.get("/read/feed/deck?user=eve&digest=x").status_code == 422
        assert reader.get("/read/feed/deck?user=eve&digest=9").status_code == 422


def test_what_a_reader_may_not_have_made_is_refused_on_a_page(api: Api) -> None:
    """It has the API's message; a missing cluster gets a message, and a question or deck of others is missing."""
    with signed_in(api, "ann-key") as ann:
        for path, sent, status in (
            ("/read/feed/questions", {"query": "why?"}, 403),
            ("/read/feed/decks", {"query": "why?", "slides": "2", "cluster": "c"}, 404),
        ):
            answer = ann.post(path, data=sent)
            assert (answer.status_code, answer.text.count("<h1>")) == (status, 1), answer.text
        assert ann.get("/read/feed/deck?cluster=c").status_code == 404
        for path in ("questions", "jobs", "decks"):
            missing = "00000000-0000-0000-0000-000000000000"
            assert ann.get(f"/read/{path}/{missing}").status_code == 404
            wrong = ann.get(f"/read/{path}/x")
            assert (wrong.status_code, "There is no" in wrong.text) == (404, True)
    with signed_in(api, "eye-key") as anybody:
        assert anybody.get("/read/feed/deck?cluster=c").status_code == 422


def test_a_page_says_that_what_was_sent_is_still_to_come(api: Api, settings: Any) -> None:
    """A page that does not include what its reader has just written says so and leads to itself; any other page does not."""
    run = asyncio.run(store_run(Seeds(settings.database), str(uuid.uuid4())))
    with signed_in(api, "root-key") as reader:
        sent = {"user_id": str(uuid.uuid4()), "query": "why?"}
        key = {"authorization": "Bearer root-key"}
        (position,) = reader.post("/api/query", json=sent, headers=key).raise_for_status().json()["positions"]
        late = reader.get(f"/read/questions/{run}", params={"after": position})
        assert (late.status_code, late.text.count("not included here yet")) == (200, 1), late.text
        assert f'href="?{httpx2.QueryParams(after=position)}"' in late.text
        assert "not included here yet" not in reader.get(f"/read/questions/{run}").text


def test_a_form_that_is_none(api: Api) -> None:
    """One clear error each: too large, another type, not text, too many fields."""
    plain = {"content-type": "application/x-www-form-urlencoded"}
    with signed_in(api, "ann-key") as reader:
        for body, kind, status in (
            (b"text=" + b"x" * (64 << 10), plain, 413),
            (b"{}", {"content-type": "application/json"}, 422),
            (b"\xff\xfe=1", plain, 422),
            (b"&".join(b"a=1" for _ in range(30)), plain, 422),
        ):
            answer = reader.post("/read/matches/m/comments", content=body, headers=kind)
            assert answer.status_code == status, answer.text
            assert answer.text.count("<h1>") == 1


def test_a_form_of_another_site_is_refused(api: Api) -> None:
    """A browser that signs in by its cookie writes for its own pages alone."""
    with signed_in(api, "ann-key") as reader:
        foreign = {"origin": "https://elsewhere.example", "sec-fetch-site": "cross-site"}
        answer = reader.post("/read/matches/m/votes", data={"choice": "home"}, headers=foreign)
        assert answer.status_code == 403


@pytest.mark.requirement("R4.26")
def test_static_files(api: Api) -> None:
    """By hash for a year, in br and gzip, for any site; by name they are requested each time; another release's are not kept."""
    with httpx2.Client(base_url=api.url, timeout=SECONDS) as anybody:
        for coding in ("br", "gzip", "identity"):
            plain = anybody.get("/read/static/highwater.js", headers={"accept-encoding": coding})
            assert plain.headers.get("content-encoding", "identity") == coding
            assert plain.headers["cache-control"] == "no-cache"
            assert plain.headers["access-control-allow-origin"] == "*"
            again = anybody.get("/read/static/highwater.js", headers={"if-none-match": plain.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        script = anybody.get("/read/static/read.js").text
        (named,) = re.findall(r'from "([^"]+)"', script)
        held = anybody.get(named)
        assert held.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert held.content == anybody.get("/read/static/highwater.js").content
        other = anybody.get(re.sub(r"[0-9a-f]{12}", "0" * 12, named))
        assert (other.headers["cache-control"], other.content) == ("no-cache", held.content)
        assert "export class Highwater" in anybody.get("/read/static/highwater.d.ts").text
        assert anybody.get("/read/static/nothing.js").status_code == 404
        assert anybody.get("/read/static/..%2Ffiles.py").status_code == 404
        assert anybody.get("/read/static/read.css", headers={"accept-encoding": "identity;q=0"}).status_code == 406
