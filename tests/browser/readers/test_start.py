"""The first page of leagues in a real browser: what is beside the seasons, and advertisements on every page of leagues."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.readers.reading import snapshots, unreadable
from tests.browser.readers.test_match import says

ADS = "/read?part=ads&lang=en"


@pytest.fixture(scope="module")
def ad(season: Any) -> Iterator[str]:
    """The title of an advertisement, whose text a stranger wrote."""
    title, path = f"Tickets {uuid.uuid4().hex[:6]}", f"/api/ads/{uuid.uuid4().hex}"
    content = {"title": title, "text": "<img src=x onerror=alert(1)>", "url": "https://example.org/tickets"}
    answer = season.product.http.put(path, json=content)
    assert answer.status_code == 202, answer.text
    position = ",".join(answer.json()["positions"])
    assert season.get("/api/ads", X_Min_Position=position, X_Max_Wait_Ms="30000").status_code == 200
    yield title
    season.product.http.delete(path)


def test_an_advertisement_is_on_every_page_of_leagues(browser: Any, season: Any, ad: str) -> None:
    """Without a script as well: a sponsored link, and a text that is not markup; not on a feed."""
    context = browser.context(java_script_enabled=False)
    page = browser.tab("/read", context)
    for path in ("/read", season.page, f"{season.page}/stats", season.match(1)):
        page.goto(path)
        link = page.get_by_role("link", name=ad)
        expect(link).to_have_attribute("href", "https://example.org/tickets")
        expect(link).to_have_attribute("rel", "sponsored nofollow noopener")
        expect(page.get_by_role("listitem").filter(has_text=ad)).to_contain_text("<img src=x onerror=alert(1)>")
        expect(page.locator("main img")).to_have_count(0)
    page.goto("/read/feed")
    expect(page.get_by_text(ad)).to_have_count(0)
    context.close()


def test_advertisements_are_kept_and_asked_for_conditionally(tab: Any, season: Any, ad: str) -> None:
    """One snapshot for all pages, with its version; a later page sends its ETag, and gets 304."""
    first = tab(season.page)
    first.until("document.readyState === 'complete'")
    kept = snapshots(first.page)[ADS]
    assert (ad in kept["body"], kept["version"]) == (True, int(season.get("/api/ads").headers["x-resource-version"]))
    first.page.goto(season.match(1))
    first.page.evaluate("allAnswered()")
    assert set(first.asked(ADS)) == {304}
    assert all("if-none-match" in answer.request.all_headers() for answer in first.answers if answer.url.endswith(ADS))


def test_a_new_advertisement_appears(tab: Any, season: Any, ad: str) -> None:
    """While the page is open."""
    seen = tab(season.page)
    title, path = f"Scarves {uuid.uuid4().hex[:6]}", f"/api/ads/0-{uuid.uuid4().hex}"
    assert season.product.http.put(path, json={"title": title}).status_code == 202
    expect(seen.page.locator("#ads").get_by_text(title)).to_be_visible()
    assert season.product.http.delete(path).status_code == 202
    expect(seen.page.locator("#ads").get_by_text(title)).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_user_sees_the_rating_and_what_it_reached(browser: Any, tab: Any, season: Any, scheme: str) -> None:
    """After a vote: an achievement of the user in the address is marked; on a phone, in both schemes, all of it is readable."""
    user = f"<b>fan</b> {uuid.uuid4().hex[:6]}"
    context = browser.context(width=360, height=740, scheme=scheme)
    match = browser.tab(season.match(2), context)
    match.goto(season.match(2))
    says(match, user)
    match.get_by_role("button", name="Home win").click()
    expect(match.get_by_text("Your vote was saved.")).to_be_visible()
    seen = tab(f"/read?user={user}", context)
    expect(seen.page.get_by_role("heading", name=f"Achievements of {user}")).to_be_visible()
    reached = seen.page.get_by_role("listitem").filter(has_text=re.compile("^First vote"))
    expect(reached).to_contain_text("1 of 1 Reached")
    expect(seen.page.get_by_role("heading", name="Leaderboard")).to_be_visible()
    expect(seen.page.locator("#leaderboard")).to_contain_text(re.compile("Users by points|No prediction is rated yet"))
    assert unreadable(seen.page) == []
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert {"/read?part=leaderboard&rating=1&lang=en", ADS} <= set(snapshots(seen.page))
