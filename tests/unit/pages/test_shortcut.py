"""The short cut to a page: it answers what the usual way answers, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.api.core.auth import Principal
from highwater.api.pages.shortcut import PATHS_MAX
from highwater.streams.pages.refresh import Freshness
from highwater.streams.telemetry import CONDITIONAL_GETS, HTTP_SECONDS
from tests.unit.pages.apps import KEYS, QUICK, Headers, ask, ask_over_connection, make_apps, tag


@pytest.fixture(params=[ask, ask_over_connection], ids=["asgi", "connection"])
def ask_short(request: pytest.FixtureRequest) -> Any:
    """A question to the application with the short cut: through ASGI, and of the connection itself."""
    return request.param


@pytest.mark.parametrize(("path", "kind", "key"), QUICK)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_page_that_the_client_has_is_answered_at_once(
    ask_short: Any, path: str, kind: str, key: str, method: str
) -> None:
    """The 304 has the headers of the usual way, comes from memory, and is counted under the route's template."""
    short, usual, services = make_apps()
    counted = CONDITIONAL_GETS.labels(kind, "not_modified")
    expected = await ask(usual, path, [tag(kind)], method=method)
    routes = {sample.labels["route"] for sample in _http_samples() if sample.value}
    before, timed = counted._value.get(), _timed()
    answer = await ask_short(short, path, [tag(kind)], method=method)
    assert answer == expected
    assert (answer[0], services.documents.quick_reads) == (304, [key])
    assert (counted._value.get(), _timed()) == (before + 1, timed + 1)
    assert {sample.labels["route"] for sample in _http_samples() if sample.value} == routes


@pytest.mark.parametrize("coding", [b"", b"br", b"gzip", b"gzip;q=0.5, br;q=0.1"])
@pytest.mark.parametrize("condition", [[], [(b"if-none-match", b'W/"ads-6"')]])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_page_in_memory_is_sent_at_once(
    ask_short: Any, coding: bytes, condition: list[Any], method: str
) -> None:
    """Without a tag, or with another: the answer of the usual way, in each coding, counted as one that was sent."""
    short, usual, _ = make_apps()
    fields = [*condition, (b"accept-encoding", coding)]
    counted = CONDITIONAL_GETS.labels("ads", "sent")
    expected = await ask(usual, "/api/ads", fields, method=method)
    before = counted._value.get()
    answer = await ask_short(short, "/api/ads", fields, method=method)
    assert (answer[0], answer) == (200, expected)  # the server leaves out the body of a HEAD
    assert counted._value.get() == before + 1


@pytest.mark.parametrize(
    "fields", [[], [(b"if-none-match", b'W/"match_meta-7+match_live-7"')], [(b"accept-encoding", b"br, gzip;q=0.5")]]
)
async def test_a_match_in_memory_is_answered_at_once(ask_short: Any, fields: list[Any]) -> None:
    """The answer consists of its two documents, under the ETag of both."""
    short, usual, services = make_apps()
    expected = await ask(usual, "/api/matches/m-1", fields)
    answer = await ask_short(short, "/api/matches/m-1", fields)
    assert answer == expected
    assert services.documents.quick_reads == ["md:m-1:meta", "md:m-1:live"]


@pytest.mark.parametrize("path", ["/api/matches/live", "/api/matches/m-1", "/api/league/eng/stats/live"])
@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("is_in_memory", [False, True])
async def test_a_live_page_is_counted_once(ask_short: Any, path: str, is_full: bool, is_in_memory: bool) -> None:
    """Whichever way it goes; beyond the limit it is refused as the usual way refuses."""
    short, usual, services = make_apps()
    services.rate_limiter.is_full = is_full
    if not is_in_memory:
        services.documents.freshness = Freshness.STALE
    answer = await ask_short(short, path, [])
    assert services.rate_limiter.counted == 1
    assert answer == await ask(usual, path, [])
    assert answer[0] == (429 if is_full else 200)


@pytest.mark.parametrize(
    ("path", "tag"), [("/api/ads", b'W/"ads-7"'), ("/api/matches/m-1", b'W/"match_meta-7+match_live-7"')]
)
async def test_without_the_lease_redis_is_enough_for_a_304(ask_short: Any, path: str, tag: bytes) -> None:
    """Where memory may not speak one question answers it; a page that the client lacks goes the usual way."""
    short, usual, services = make_apps()
    services.documents.quick = lambda _found: None
    services.documents.is_near = True
    for fields in ([(b"if-none-match", tag)], [(b"if-none-match", b'"x"')], []):
        answer = await ask_short(short, path, fields)
        assert answer == await ask(usual, path, fields)
    scope = {"type": "http", "method": "GET", "raw_path": path.encode(), "query_string": b"", "headers": []}
    assert not await short.short_cut.answer(scope, _refuse)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    assert await short.short_cut.answer({**scope, "headers": [(b"if-none-match", tag)]}, send)
    assert sent[0]["status"] == 304


async def test_a_body_that_is_not_in_memory_goes_the_usual_way(ask_short: Any) -> None:
    """It has to be fetched; nothing was sent before."""
    short, usual, services = make_apps()
    services.documents.has_bodies = False
    scope = {"type": "http", "method": "GET", "raw_path": b"/api/ads", "query_string": b"", "headers": []}
    assert not await short.short_cut.answer(scope, _refuse)
    assert await ask_short(short, "/api/ads", []) == await ask(usual, "/api/ads", [])


def _http_samples() -> list[Any]:
    return [sample for metric in HTTP_SECONDS.collect() for sample in metric.samples if sample.name.endswith("_count")]


def _timed() -> float:
    return sum(sample.value for sample in _http_samples())


ASIDE = [
    ("a position", "/api/ads", [tag("ads"), (b"x-min-position", b"league.ad-changed/0/1")]),
    ("a wait", "/api/ads", [tag("ads"), (b"x-max-wait-ms", b"x")]),
    ("two conditions", "/api/ads", [tag("x"), tag("ads")]),
    ("no coding left", "/api/ads", [tag("ads"), (b"accept-encoding", b"*;q=0")]),
    ("a session", "/api/ads", [tag("ads"), (b"authorization", b"Bearer hws_1")]),
    ("a key nobody has", "/api/ads", [tag("ads"), (b"authorization", b"Bearer nobody")]),
    ("what is for administrators", "/api/league/admin/stats", [tag("admin_stats")]),
    ("the same in another spelling", "/api/league/%61dmin/stats", [tag("league_stats")]),
    ("what a user achieved", "/api/users/ada/achievements", [tag("achievements")]),
    ("no such path", "/api/league/eng/tables", [tag("league_table")]),
    ("a path that is no text", "/api/league/%ff/table", [tag("league_table")]),
    ("no id", "/api/league//table", [tag("league_table")]),
]


@pytest.mark.parametrize(("why", "path", "headers"), ASIDE, ids=[case[0] for case in ASIDE])
async def test_in_doubt_it_steps_aside(ask_short: Any, why: str, path: str, headers: Headers) -> None:
    """A request that needs more than memory takes the usual path, and nothing was sent before."""
    short, usual, _ = make_apps()
    assert not await short.short_cut.answer(
        {"type": "http", "method": "GET", "raw_path": path.encode(), "query_string": b"", "headers": headers}, _refuse
    )
    assert await ask_short(short, path, headers) == await ask(usual, path, headers)


async def _refuse(_message: Any) -> None:
    raise AssertionError("sent")


async def test_a_query_or_another_method_goes_the_usual_way() -> None:
    """A page of the rating by number, a user's predictions, a write."""
    short, usual, _ = make_apps()
    for path, query, method in (
        ("/api/leaderboard", b"page=2", "GET"),
        ("/api/predictions", b"user=ada", "GET"),
        ("/api/ads", b"", "DELETE"),
    ):
        headers = [(b"if-none-match", b"*")]
        scope = {"type": "http", "method": method, "raw_path": path.encode(), "query_string": query, "headers": headers}
        assert not await short.short_cut.answer(scope, _refuse)
        answers = [await ask(app, path, headers, method=method, query=query) for app in (short, usual)]
        assert answers[0] == answers[1]


async def test_a_page_that_is_no_longer_good_or_not_in_memory_goes_the_usual_way(ask_short: Any) -> None:
    """A stale one is marked in its headers and rebuilt; a missing one is 404, also for `*`."""
    short, usual, services = make_apps()
    for freshness in (Freshness.STALE, Freshness.KEPT):
        services.documents.freshness = freshness
        answer = await ask_short(short, "/api/ads", [tag("ads")])
        assert answer == await ask(usual, "/api/ads", [tag("ads")])
        assert (b"x-stale", b"true") in answer[1]
    services.documents.freshness = Freshness.FRESH
    services.documents.missing.add("ads:all")
    assert (await ask_short(short, "/api/ads", [(b"if-none-match", b"*")]))[0] == 404


async def test_what_changes_with_time_is_told_anew(ask_short: Any) -> None:
    """The age in a 304 is that of the moment, also of a page that was answered before."""
    short, usual, services = make_apps()
    for age_seconds in (3, 3, 4):
        services.documents.age_seconds = age_seconds
        answer = await ask_short(short, "/api/ads", [tag("ads")])
        assert answer == await ask(usual, "/api/ads", [tag("ads")])
        assert (b"age", str(age_seconds).encode()) in answer[1]


async def test_a_key_opens_as_it_does_the_usual_way(ask_short: Any) -> None:
    """With keys set a request without a key is refused; a bound key's read is noted once; no shared cache keeps the answer."""
    short, usual, services = make_apps(KEYS)
    noted: list[Principal] = []
    services.activity.note = noted.append
    assert (await ask_short(short, "/api/ads", [tag("ads")]))[0] == 401
    for token in (b"eye", b"ada-key", b"root"):
        headers = [tag("ads"), (b"authorization", b"Bearer " + token)]
        del noted[:]
        answer = await ask_short(short, "/api/ads", headers)
        told = list(noted)
        assert answer == await ask(usual, "/api/ads", headers)
        assert noted == told * 2
        assert dict(answer[1])[b"cache-control"].startswith(b"private, ")
    await ask_short(short, "/api/ads", [tag("ads"), (b"authorization", b"Bearer eye")], method="HEAD")
    assert len(noted) == 2


async def test_a_public_page_opens_without_a_key(ask_short: Any) -> None:
    """With the answer of the usual way, which a shared cache may store; a wrong key and other pages are refused as before."""
    short, usual, services = make_apps(KEYS, is_league_public=True)
    for fields in ([], [tag("ads")]):
        expected = await ask(usual, "/api/ads", fields)
        assert await ask_short(short, "/api/ads", fields) == expected
        assert dict(expected[1])[b"cdn-cache-control"].startswith(b"public")
    assert services.documents.quick_reads == ["ads:all"] * 2
    for path, fields in (("/api/ads", [(b"authorization", b"Bearer wrong")]), ("/api/league/admin/stats", [])):
        expected = await ask(usual, path, fields)
        assert (expected[0], await ask_short(short, path, fields)) == (401, expected)
    short, usual, _ = make_apps(KEYS)
    assert (await ask_short(short, "/api/ads", []))[0] == 401


async def test_paths_are_remembered_up_to_a_limit(ask_short: Any) -> None:
    """The number of requested pages does not matter, and invalid paths are not remembered at all."""
    short, _, services = make_apps()
    for number in range(PATHS_MAX + 10):
        assert (await ask_short(short, f"/api/league/s{number}/table", [tag("league_table")]))[0] == 304
        services.documents.missing.add(f"league:table:x{number}")
        await ask_short(short, f"/api/league/x{number}/table", [tag("league_table")])
    assert 0 < len(short.short_cut._known) <= PATHS_MAX


_PATHS = st.sampled_from([path for path, _, _ in QUICK] + [path for _, path, _ in ASIDE])
_FIELDS = st.sampled_from(
    [
        *[tag(kind) for _, kind, _ in QUICK],
        (b"if-none-match", b"*"),
        (b"if-none-match", b'"ads-7"'),
        (b"if-none-match", b'"x", W/"ads-7"'),
        (b"if-none-match", b"ads-7"),
        (b"if-none-match", b""),
        (b"accept-encoding", b"br"),
        (b"accept-encoding", b"identity;q=0"),
        (b"authorization", b"Bearer eye"),
        (b"authorization", b"bearer  ada-key "),
        (b"authorization", b"Basic eye"),
        (b"authorization", b""),
        (b"cache-control", b"no-cache"),
        (b"x-min-position", b""),
    ]
)


@given(
    path=_PATHS,
    fields=st.lists(_FIELDS, max_size=4),
    keys=st.sampled_from(["none", "all", "no league"]),
    method=st.sampled_from(["GET", "HEAD"]),
)
def test_both_ways_give_one_answer(path: str, fields: Headers, keys: str, method: str) -> None:
    """For any request, status, headers and body are the same with and without the short cut."""
    short, usual = _BOTH[keys]

    async def both() -> list[Any]:
        return [await ask(app, path, fields, method=method) for app in (short, usual)]

    answers = asyncio.run(both())
    assert answers[0] == answers[1]


# By what requires a key.
_BOTH = {
    keys: make_apps(None if keys == "none" else KEYS, f"both, {keys}", is_league_public=keys == "no league")[:2]
    for keys in ("none", "all", "no league")
}
