"""The leaderboard, achievements and advertisements as readers see them: no word of strangers becomes markup or runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from highwater.api.readers import feed_pages, start_pages
from highwater.api.readers.start_pages import ADS_SHOWN_MAX, TEXT_CHARACTERS_MAX, TITLE_CHARACTERS_MAX
from highwater.streams.messages import catalogue

ENGLISH = catalogue().messages("en")
ATTACK = '<script>alert(1)</script>"onclick="x'
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;&quot;onclick=&quot;x"


def ads(*payloads: Any) -> str:
    """Advertisements with these contents."""
    return start_pages.advertisements({"ads": [{"ad_id": "a", "payload": payload} for payload in payloads]}, ENGLISH)


def test_an_advertisement_is_a_sponsored_link() -> None:
    """Its title leads to its address, its text stands below; search engines and the other site get no recommendation."""
    shown = ads({"title": "Season tickets", "text": "From 10 €", "url": "https://example.org/?a=1&b=2"})
    link = '<a href="https://example.org/?a=1&amp;b=2" rel="sponsored nofollow noopener">Season tickets</a>'
    assert f'<li>{link}<p class="said">From 10 €</p></li>' in shown
    assert ">Read more</a></li>" in ads({"text": "Read more", "url": "http://example.org"})


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)", " javascript:alert(1)", "java\tscript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x",
        "//example.org", "/logout", "https:logout", "http://[", "ftp://example.org", "", 7, None, ["https://example.org"],
    ],
)  # fmt: skip
def test_only_addresses_of_the_web_are_links(url: Any) -> None:
    """Its words are shown without a link; the origin of an insight has the same rule."""
    assert "<b>Buy</b>" in ads({"title": "Buy", "url": url})
    assert "href" not in ads({"title": "Buy", "url": url})
    if isinstance(url, str):
        assert feed_pages._link(url, ENGLISH) == ""


def test_words_of_strangers_are_text() -> None:
    """In every member that is shown, also within an address."""
    shown = ads({"title": ATTACK, "text": ATTACK, "url": f"https://example.org/{ATTACK}"})
    users = [{"rank": 1, "user_id": ATTACK, "points": 3, "exact": 1, "correct": 0, "judged": 1}]
    board = start_pages.leaderboard({"page": 1, "users": users, "next_cursor": None}, ENGLISH)
    reached = start_pages.achievements({"user_id": ATTACK, "achievements": []}, ENGLISH)
    for html, count in ((shown, 3), (board, 1), (reached, 1)):
        assert (html.count(ESCAPED), "<script" in html) == (count, False)


def test_content_of_another_form_is_not_shown() -> None:
    """An advertisement is any JSON: one without words of its own is left out, and a section without any is absent."""
    others = [None, 7, "text", [], {}, {"title": ""}, {"title": 7, "text": ["x"]}, {"title": "  "}]
    assert ads(*others) == ads() == start_pages.advertisements({}, ENGLISH) == ""
    assert ads(*others, {"title": "Buy"}).count("<li>") == 1


def test_advertisements_have_bounds() -> None:
    """The first ones, with the beginning of their words."""
    shown = ads(*({"title": "t" * 9_000, "text": "x" * 9_000} for _ in range(ADS_SHOWN_MAX + 1)))
    assert shown.count("<li>") == ADS_SHOWN_MAX
    assert {len(found) for found in re.findall(r"t{9,}|x{9,}", shown)} == {TITLE_CHARACTERS_MAX, TEXT_CHARACTERS_MAX}


def test_a_leaderboard_leads_to_its_other_pages() -> None:
    """To the one before, and to the one after if there is one; without users it says so."""
    users = [{"rank": 51, "user_id": "ann", "points": 9, "exact": 2, "correct": 3, "judged": 7}]
    middle = start_pages.leaderboard({"page": 2, "users": users, "next_cursor": "3"}, ENGLISH)
    assert re.findall(r'href="([^"]+)"', middle) == ["/read?rating=1#leaderboard", "/read?rating=3#leaderboard"]
    assert re.findall(r"<t[dh][^>]*>(?:<b>)?(\w+)(?:</b>)?</t[dh]>", middle) == ["51", "ann", "9", "2", "3", "7"]
    empty = start_pages.leaderboard({"page": 1, "users": [], "next_cursor": None}, ENGLISH)
    assert ("No prediction is rated yet." in empty, "href" in empty) == (True, False)


def test_an_achievement_shows_how_far_it_is() -> None:
    """Counted up to what it needs; the reached ones are marked."""
    named = [("10 votes", False, 4, 10), ("first vote", True, 4, 1)]
    document = {
        "user_id": "ann",
        "achievements": [dict(zip(("name", "reached", "count", "needed"), one, strict=True)) for one in named],
    }
    shown = start_pages.achievements(document, ENGLISH)
    assert "<li>10 votes <small>4 of 10</small></li>" in shown
    assert "<li>First vote <small>1 of 1</small> <b class=new>Reached</b></li>" in shown
