"""Readers' pages in the language of their reader, over HTTP: by `Accept-Language`, or by a choice that is remembered."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.integration.api_server import Api, running_api
from tests.integration.readers.test_pages import SECONDS

RUSSIAN = {"accept-language": "ru-RU,ru;q=0.9,en;q=0.8"}
VARY = "Accept-Encoding, Accept-Language, Cookie"


@pytest.fixture(scope="module")
def api(own_settings: Any) -> Iterator[Api]:
    """An API with keys whose leagues are public."""
    keys = "viewer:eye-key,viewer:ann-key:ann"
    more = {"HIGHWATER_PUBLIC_LEAGUE": "on", "HIGHWATER_LIVE_REQUESTS_MAX": "1000000"}
    with running_api(own_settings(HIGHWATER_API_KEYS=keys, **more)) as running:
        yield running


@pytest.fixture
def anybody(api: Api) -> Iterator[httpx2.Client]:
    """A browser that has not signed in."""
    with httpx2.Client(base_url=api.url, timeout=SECONDS) as client:
        yield client


def heading(answer: httpx2.Response) -> tuple[str, str, str]:
    """The language of a page, as its headers and its HTML say, and its heading."""
    page = answer.text
    declared = re.findall(r'<html lang="([^"]+)"', page)[0]
    return answer.headers["content-language"], declared, re.findall(r"<h1>(.*?)</h1>", page)[0]


def test_a_page_is_in_the_language_of_the_browser(anybody: httpx2.Client) -> None:
    """Its headers name the language and what it depends on; without a known one it is in English."""
    page = anybody.get("/read", headers=RUSSIAN)
    assert heading(page) == ("ru", "ru", "Лиги")
    assert page.headers["vary"] == VARY
    assert page.headers["cache-control"] == "private, no-cache"
    assert "Сезонов пока нет. Оператор загружает сезон командой: highwater import" in page.text
    for headers in ({}, {"accept-language": "de, fr;q=0.5"}, {"accept-language": "en-GB, ru;q=0.9"}):
        assert heading(anybody.get("/read", headers=headers)) == ("en", "en", "Leagues")
    missing = anybody.get("/read/league/none", headers=RUSSIAN)
    assert (missing.status_code, missing.headers["content-language"]) == (404, "ru")
    assert '<p class="note" lang="en">There is no season' in missing.text


def test_a_choice_is_remembered(anybody: httpx2.Client) -> None:
    """A link of each page chooses another language, in which later pages are, also against the preference of the browser."""
    first = anybody.get("/read?cursor=x&done=vote")
    (link,) = re.findall(r'<nav class="languages" aria-label="Language"><a href="([^"]+)" lang="ru"', first.text)
    assert html.unescape(link) == "?cursor=x&lang=ru"
    chosen = anybody.get("/read?lang=ru")
    assert heading(chosen)[0] == "ru"
    (cookie,) = chosen.headers.get_list("set-cookie")
    assert cookie.startswith("highwater_language=ru; ")
    assert {"Path=/read", "SameSite=lax", "Max-Age=34560000"} <= set(cookie.split("; "))
    later = anybody.get("/read", headers={"accept-language": "en"})
    assert heading(later)[0] == "ru"
    assert "set-cookie" not in later.headers
    assert heading(anybody.get("/read?lang=xx"))[0] == "ru"
    assert 'lang="en" hreflang="en">English</a>' in later.text
    assert heading(anybody.get("/read?lang=en"))[0] == "en"
    assert heading(anybody.get("/read", headers=RUSSIAN))[0] == "en"
    anybody.cookies.clear()
    anybody.cookies.set("highwater_language", "../x", path="/read")
    assert heading(anybody.get("/read", headers=RUSSIAN))[0] == "ru"


def test_a_part_has_an_etag_per_language(anybody: httpx2.Client) -> None:
    """The same version in two languages is two representations: neither ETag gets a 304 for the other; a page's parts
    stay in its language.
    """
    named = [
        html.unescape(part) for part in re.findall(r'data-part="([^"]+)"', anybody.get("/read", headers=RUSSIAN).text)
    ]
    assert len(named) == 3
    assert all(part.endswith("&lang=ru") for part in named)
    for part in named:
        bare = part.removesuffix("&lang=ru")
        russian, english = anybody.get(bare, headers=RUSSIAN), anybody.get(bare)
        assert russian.headers["x-resource-version"] == english.headers["x-resource-version"]
        assert russian.headers["etag"] != english.headers["etag"]
        assert {russian.headers["vary"], english.headers["vary"]} == {VARY}
        assert russian.headers["content-language"] == "ru"
        assert anybody.get(part).headers["etag"] == russian.headers["etag"]
        assert "set-cookie" not in anybody.get(part).headers
        for held, headers, status in (
            (russian, RUSSIAN, 304),
            (english, {}, 304),
            (russian, {}, 200),
            (english, RUSSIAN, 200),
        ):
            again = anybody.get(bare, headers={**headers, "if-none-match": held.headers["etag"]})
            assert (again.status_code, again.headers["vary"]) == (status, VARY), (part, headers)
    both = f"{anybody.get(named[0]).headers['etag']}, {anybody.get(bare).headers['etag']}"
    assert anybody.get(named[0], headers={"if-none-match": both}).status_code == 304
