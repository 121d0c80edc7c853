"""A reader's feed in a real browser: by theme and cluster, changes, and the reader's own decks and questions."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import expect

from highwater.streams.clock import ProductClock
from tests.browser.readers.reading import unreadable, weighed

PAGE_BYTES_MAX = 60_000
_WORDS = ("rebalance of consumer groups", "release notes of the broker", "schema registry compatibility")


@dataclass(frozen=True)
class Reader:
    """A user with a feed."""

    product: Any
    url: str
    user: str
    channel: str

    @property
    def page(self) -> str:
        """The feed's page."""
        return f"/read/feed?user={self.user}"

    def feed(self) -> Any:
        """The feed as the API returns it."""
        return self.product.http.get(f"{self.url}/api/users/{self.user}/feed").json()

    def reads(self, first: int, count: int, words: tuple[str, ...] = _WORDS) -> None:
        """Insights come, and clusters are made of them."""
        before, now_ms = self.product.pending(self.user)["cluster_version"], ProductClock()()
        rows = [
            {"insight_id": f"{self.channel}-{n}", "channel_id": self.channel, "ts": now_ms - n,
             "text": f"{words[n % len(words)]} {n}"}
            for n in range(first, first + count)
        ]  # fmt: skip
        answer = self.product.http.post(
            "/api/events/feeds.insight-ingested",
            content="".join(json.dumps(row) + "\n" for row in rows),
            headers={"content-type": "application/x-ndjson"},
        )
        assert answer.status_code == 202, answer.text
        if before:
            self.product.until(lambda: self.product.pending(self.user)["pending"] >= count, "they are counted")
            again = self.product.http.post(f"/api/users/{self.user}/rebuild")
            assert again.status_code == 202, again.text
        self.product.until(lambda: self.product.pending(self.user)["cluster_version"] > before, "no clusters", 120)
        self.product.until(lambda: self.feed()["cluster_version"] > before, "the feed is built")


@pytest.fixture(scope="module")
def reader(product: Any, api_url: str) -> Reader:
    """A user whose feed has clusters."""
    found = Reader(product, api_url, str(uuid.uuid4()), f"c-{uuid.uuid4().hex[:8]}")
    product.subscribe(found.user, [found.channel])
    found.reads(0, 90)
    return found


def test_a_feed_by_theme_and_cluster(tab: Any, reader: Reader) -> None:
    """A visitor without a user names the feed; each cluster is shown once, folded, under the theme of its version."""
    seen = tab("/read/feed").page
    seen.get_by_label("User").fill(reader.user)
    seen.get_by_role("button", name="Show the feed").click()
    expect(seen.get_by_role("heading", name=f"Feed of {reader.user}")).to_be_visible()
    items = reader.feed()["items"]
    expect(seen.locator("article")).to_have_count(len(items))
    themes = seen.locator("section:has(article) > h2").all_inner_texts()
    assert sorted(themes) == sorted({item["theme"] for item in items})
    title = items[0]["title"]
    expect(seen.get_by_role("heading", level=3, name=title)).to_have_count(
        sum(1 for one in items if title in one["title"])
    )
    first = seen.locator("article").first
    first.locator("summary").press("Enter")
    expect(first.get_by_role("listitem").first).to_be_visible()


def test_what_is_new_since_the_last_visit(browser: Any, tab: Any, reader: Reader) -> None:
    """Marked as it comes while the page is open, the same on the next visit, also without a script, and no longer after that."""
    context = browser.context()
    seen = tab(reader.page, context)
    expect(seen.page.locator("article").first).to_be_visible()
    expect(seen.page.locator("[data-news]")).to_have_text("")
    seen.page.locator("article details").first.locator("summary").click()
    opened = seen.page.locator("article details").first.get_attribute("id")
    reader.reads(1_000, 60, ("memory leak of the browser", "css colours of a button"))
    seen.page.evaluate("look('visible')")
    expect(seen.page.locator("[data-news]")).to_contain_text("with news since your last visit")
    marks = [one for one in seen.page.locator("[data-new]").all_inner_texts() if one]
    assert "New" in marks
    if seen.page.locator(f"details[id='{opened}']").count():
        expect(seen.page.locator(f"details[id='{opened}']")).to_have_attribute("open", "")
    state = [one for one in context.cookies() if not one["name"].startswith("highwater_visit_")]  # half an hour later
    plain = browser.context(java_script_enabled=False, storage_state={"cookies": state, "origins": []})
    later = browser.tab(reader.page, plain)
    later.goto(reader.page)
    assert [one for one in later.locator("[data-new]").all_inner_texts() if one] == marks
    expect(later.get_by_role("heading", level=2, name="What is new")).to_be_visible()
    expect(later.locator("main")).to_contain_text("60 new insights")
    expect(later.get_by_role("link", name="Make a deck of this")).to_be_visible()
    later.reload()  # the same visit
    expect(later.locator("[data-news]")).to_contain_text("with news since your last visit")
    plain.add_cookies([one for one in plain.cookies() if not one["name"].startswith("highwater_visit_")])
    state = [one for one in plain.cookies() if not one["name"].startswith("highwater_visit_")]
    plain.close()
    after = browser.context(java_script_enabled=False, storage_state={"cookies": state, "origins": []})
    last = browser.tab(reader.page, after)
    last.goto(reader.page)
    expect(last.locator("article").first).to_be_visible()
    expect(last.locator("main")).to_contain_text("Nothing new since")
    assert not any(last.locator("[data-new]").all_inner_texts())
    after.close()


def test_a_question_is_answered_on_its_page(tab: Any, reader: Reader) -> None:
    """The form leads to a page on which the answer appears by itself; sent twice it is one question."""
    seen = tab(reader.page).page
    seen.get_by_label("Your question").fill("What was said of the schema registry?")
    seen.get_by_role("button", name="Ask").click()
    seen.wait_for_url("**/read/questions/*")
    expect(seen.get_by_role("heading", name="Answer")).to_be_visible()
    expect(seen.get_by_role("heading", name="Sources")).to_be_visible()
    expect(seen.locator("main")).to_contain_text("schema registry")
    asked = reader.product.get(f"/api/users/{reader.user}/queries").json()["queries"]
    assert [one["query"] for one in asked] == ["What was said of the schema registry?"]


def test_a_refused_question_says_why(browser: Any, tab: Any, reader: Reader) -> None:
    """The words that were written stay in the form."""
    seen = tab(reader.page).page
    seen.get_by_label("Your question").fill("   ")
    seen.get_by_role("button", name="Ask").click()
    expect(seen.get_by_role("alert")).to_be_visible()
    expect(seen.get_by_label("Your question")).to_have_value("   ")
    browser.problems.clear()  # the browser's line about the refusal


def test_a_deck_of_a_cluster(tab: Any, reader: Reader) -> None:
    """From a cluster to the form, to the running job, to the slides, which contain the texts of the cluster's insights."""
    seen = tab(reader.page).page
    seen.locator("article").first.get_by_role("link", name="Make a deck").click()
    seen.get_by_label("Organization").fill(f"org-{reader.user[:8]}")
    seen.get_by_label("Slides").fill("2")
    seen.get_by_role("button", name="Make the deck").click()
    seen.wait_for_url("**/read/jobs/*")
    seen.get_by_role("link", name="Open the deck").click()
    expect(seen.get_by_role("heading", level=1, name="Deck")).to_be_visible()
    expect(seen.get_by_role("heading", level=2)).to_have_count(3)  # of two slides, and of the public links
    expect(seen.get_by_role("heading", level=2).last).to_have_text("Public links")
    expect(seen.locator("main li").first).to_be_visible()


def test_what_is_new_comes_while_the_page_is_open(browser: Any, tab: Any, reader: Reader) -> None:
    """On a later visit the part grows by itself, without a reload; and a deck can be made of it."""
    context = browser.context()
    tab(reader.page, context).page.close()
    seen = tab(reader.page, context).page
    expect(seen.locator("main")).to_contain_text("Nothing new since")
    reader.reads(5_000, 30, ("quotas for tenants of a cluster",))
    seen.evaluate("look('visible')")
    expect(seen.locator("main")).to_contain_text("30 new insights")
    seen.get_by_role("link", name="Make a deck of this").click()
    expect(seen.get_by_role("heading", level=1)).to_contain_text("Make a deck: What is new")
    seen.get_by_label("Organization").fill(f"org-{reader.user[:8]}")
    seen.get_by_label("Slides").fill("2")
    seen.get_by_role("button", name="Make the deck").click()
    seen.wait_for_url("**/read/jobs/*")
    seen.get_by_role("link", name="Open the deck").click()
    expect(seen.get_by_role("heading", level=1, name="Deck")).to_be_visible()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_and_the_keyboard(browser: Any, reader: Reader, scheme: str) -> None:
    """On 360 pixels nothing is wider than the screen, and texts have a contrast of 4.5 or more."""
    context = browser.context(width=360, height=740, scheme=scheme)
    cluster = reader.feed()["items"][0]["cluster_id"]
    for path in ("/read/feed", reader.page, f"/read/feed/deck?user={reader.user}&cluster={cluster}"):
        page = browser.tab(path, context)
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        assert unreadable(page) == [], (path, scheme)
        assert page.locator("h1").count() == 1
        page.close()
    context.close()


def test_a_feed_is_light(browser: Any, reader: Reader) -> None:
    """The page with all it loads weighs less than 60 kB."""
    context = browser.context()
    page = browser.tab(reader.page, context)
    sizes = weighed(page)
    page.goto(reader.page)
    page.wait_for_load_state("networkidle")
    assert sum(sizes.values()) < PAGE_BYTES_MAX, sizes
    context.close()
