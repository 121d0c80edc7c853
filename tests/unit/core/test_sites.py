"""Which sites may ask for what, and with which bodies: each line of the rules, and what a browser could make of them."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from highwater.api.core.bodies import wrong_coding, wrong_type
from highwater.api.core.sites import Asking, Sites, is_loopback_host, parse_origins
from highwater.schemas.errors import ConfigurationError

OURS = "127.0.0.1:8080"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("localhost:8080", True),
        ("LOCALHOST:8080", True),
        ("127.0.0.1", True),
        ("127.8.9.10:1", True),
        ("[::1]:8080", True),
        ("[::ffff:127.0.0.1]", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:8080", False),
        ("evil.example@localhost", False),
        ("localhost/evil.example", False),
        ("localhost:port", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_which_names_are_loopback(host: str, expected: bool):
    """Only what no other machine can have, in the forms that browsers send."""
    assert is_loopback_host(host) == expected


def test_only_an_open_api_asks_for_a_name():
    """With keys a name is nothing; without, every one of them has to be loopback, and none is that of no browser."""
    assert Sites(is_open=False).misdirected(["evil.example"]) is None
    here = Sites(is_open=True)
    assert here.misdirected([]) is None
    assert here.misdirected([OURS]) is None
    for hosts in (["evil.example"], [OURS, "evil.example"]):
        refusal = here.misdirected(hosts)
        assert refusal is not None
        assert refusal.status == HTTPStatus.MISDIRECTED_REQUEST


def foreign(origin: str, fetch_site: str = "", *, is_open: bool = True, host: str = OURS, scheme: str = "http") -> bool:
    """Whether a write is refused as one of another site."""
    sites = Sites(is_open=is_open, allowed_origins=["https://app.example"])
    return sites.foreign(Asking([host], origin, fetch_site, scheme)) is not None


@pytest.mark.parametrize(
    ("origin", "fetch_site", "expected"),
    [
        ("", "", False),  # no browser
        ("", "same-origin", False),
        ("", "none", False),
        ("", "cross-site", True),
        ("", "same-site", True),
        ("", "new-word", True),
        ("http://127.0.0.1:8080", "same-origin", False),
        ("http://localhost:3000", "cross-site", False),  # a page that this machine serves
        ("http://[::1]:3000", "cross-site", False),
        ("https://evil.example", "cross-site", True),
        ("https://evil.example", "same-origin", True),
        ("http://127.0.0.1.evil.example", "", True),
        ("http://evil.example@127.0.0.1:8080", "", True),
        ("null", "cross-site", True),
        ("", "cross-site, same-origin", True),
        ("https://app.example", "cross-site", False),  # allowed
        ("http://app.example", "cross-site", True),
        ("https://app.example.evil.example", "cross-site", True),
    ],
)
def test_whose_writes_an_open_api_takes(origin: str, fetch_site: str, expected: bool):
    """Those of no browser, of pages of this machine, and of the origins that are set."""
    assert foreign(origin, fetch_site) == expected


@pytest.mark.parametrize(
    ("origin", "fetch_site", "host", "scheme", "expected"),
    [
        ("https://hw.example", "same-origin", "hw.example", "https", False),
        ("https://hw.example", "", "hw.example", "http", False),  # behind a proxy that was not named
        ("https://hw.example:443", "", "hw.example", "https", False),
        ("http://hw.example", "same-site", "hw.example", "https", True),  # not encrypted, so it may be anybody's
        ("https://hw.example:8443", "same-site", "hw.example", "https", True),
        ("http://hw.example", "same-site", "hw.example", "wss", True),
        ("https://hw.example", "cross-site", "hw.example", "https", True),
        ("http://localhost:3000", "cross-site", "hw.example", "https", True),
    ],
)
def test_whose_writes_count_where_a_cookie_signs_in(
    origin: str, fetch_site: str, host: str, scheme: str, expected: bool
):
    """Those of the very same origin; a page of this machine is one like every other."""
    assert foreign(origin, fetch_site, is_open=False, host=host, scheme=scheme) == expected


@pytest.mark.parametrize("name", ["*", "null", "app.example", "https://", "ftp://app.example", "https://app.example/x"])
def test_an_origin_that_is_none_is_named(name: str):
    """The program stops with the setting's name."""
    with pytest.raises(ConfigurationError, match="HIGHWATER_ALLOWED_ORIGINS"):
        parse_origins([name])


def test_origins_are_spelled_as_browsers_do():
    """In lower case, without the port of the scheme and without a slash."""
    named = ["https://App.example:443/", "http://app.example:8080", "http://[::1]:80"]
    assert parse_origins(named) == {"https://app.example", "http://app.example:8080", "http://[::1]"}


@pytest.mark.parametrize(
    ("path", "content_type", "expected"),
    [
        ("/api/query", "application/json", True),
        ("/api/query", "Application/JSON; charset=utf-8", True),
        ("/api/query", "application/vnd.x+json", True),
        ("/api/query", "", False),
        ("/api/query", "text/plain", False),
        ("/api/query", "text/plain; application/json", False),
        ("/api/query", "application/x-www-form-urlencoded", False),
        ("/api/query", "application/x-ndjson", False),
        ("/api/events/feeds.user-erased", "text/plain", False),
        ("/api/events/feeds.user-erased", "", False),
        ("/api/events/feeds.user-erased", "application/json", True),
        ("/api/events/feeds.user-erased", "application/x-ndjson; charset=utf-8", True),
        ("/api/events/feeds.user-erased", "application/jsonl", True),
        ("/api/blobs", "text/plain", True),
        ("/api/blobs", "", True),
        ("/login", "application/x-www-form-urlencoded", True),
        ("/login", "text/plain", False),
        ("/_nicegui_ws/socket.io/", "text/plain;charset=UTF-8", True),
    ],
)
def test_which_bodies_are_taken(path: str, content_type: str, expected: bool):
    """JSON beneath `/api/`, also in lines as events, any bytes as a blob; never what a foreign page sends without being asked."""
    assert (wrong_type(path, content_type) is None) == expected


@pytest.mark.parametrize(("coding", "expected"), [("", True), ("identity", True), ("gzip", False), ("br, gzip", False)])
def test_no_coding_is_taken(coding: str, expected: bool):
    """A body is as long as it says."""
    assert (wrong_coding(coding) is None) == expected
