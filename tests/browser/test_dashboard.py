"""The dashboard in a real browser over the real product: every page shows what the product did, live."""

from __future__ import annotations

import re
import uuid

import pytest
from playwright.sync_api import expect

from streams.clock import ProductClock

PATHS = (
    *("/", "/topics", "/browse", "/user", "/league", "/queries", "/jobs", "/chunks", "/dead-letters", "/policies"),
)
SECONDS = 30_000


@pytest.fixture(scope="module")
def lived(product):
    """A product in which a user has clusters, a topic a dead letter, and somebody asked."""
    user, channel = f"u-{uuid.uuid4().hex[:8]}", f"c-{uuid.uuid4().hex[:8]}"
    product.subscribe(user, [channel])
    words = ("rebalance of consumer groups", "release notes of the broker", "schema registry compatibility")
    now_ms = ProductClock()()
    product.publish(
        "feeds.insight-ingested",
        [
            {"insight_id": f"{channel}-{n}", "channel_id": channel, "ts": now_ms - n, "text": f"{words[n % 3]} {n}"}
            for n in range(90)
        ],
    )
    product.until(lambda: product.pending(user)["cluster_version"] > 0, "no clusters", 120)
    bad = {"user_id": user, "ts": 1}  # a time that no event can have
    product.http.post("/api/events/feeds.user-active", json=bad)
    return user, channel


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PATHS)
def test_every_page_opens(browser, product, path, scheme):
    """Without an error in the browser, without a request elsewhere, in both modes; its name is its heading and its link."""
    page = browser.page(path, scheme=scheme)
    link = page.locator("nav a[aria-current=page]")
    expect(link).to_have_attribute("href", path)
    expect(page.locator("h1")).to_have_text(re.sub(r"(hub|list|\d)$", "", link.inner_text().split("\n")[1]).strip())
    expect(page.locator(f"body.body--{scheme}")).to_be_attached(timeout=SECONDS)


@pytest.mark.parametrize("path", PATHS)
def test_a_phone_scrolls_in_one_direction(browser, product, path):
    """What is wider scrolls within itself."""
    page = browser.page(path, width=390, height=844)
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_overview_moves(browser, product, lived):
    """The parts are ready, and what is published shows on the edges."""
    _, channel = lived
    page = browser.page("/")
    expect(page.get_by_text("✓ kafka")).to_be_visible(timeout=SECONDS)
    expect(page.locator("svg.hw-flow")).to_have_count(6, timeout=SECONDS)
    for round_number in range(5):
        product.publish(
            "feeds.insight-ingested",
            [
                {
                    "insight_id": f"{channel}-r{round_number}-{n}",
                    "channel_id": channel,
                    "ts": 1_700_000_000_000,
                    "text": "x",
                }
                for n in range(200)
            ],
        )
    expect(page.locator(".hw-edge.on").first).to_be_attached(timeout=SECONDS)


def test_records_are_followed_and_filtered(browser, product, lived):
    """A record that comes while the page is open is there; a condition leaves the others out; a bad one shows its spot."""
    _, channel = lived
    page = browser.page("/browse?topic=feeds.insight-ingested")
    expect(page.locator("tbody tr").first).to_be_visible(timeout=SECONDS)
    needle = f"needle-{uuid.uuid4().hex}"
    product.publish(
        "feeds.insight-ingested",
        [{"insight_id": needle, "channel_id": channel, "ts": 1_700_000_000_000, "text": "found in a haystack"}],
    )
    where = page.get_by_label("Where (CEL)")
    where.fill('value.text.contains("haystack")')
    expect(page.get_by_text(needle).first).to_be_visible(timeout=SECONDS)
    expect(page.locator("tbody tr", has_text="rebalance of consumer groups")).to_have_count(0, timeout=SECONDS)
    page.locator("tbody tr a").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("found in a haystack", timeout=SECONDS)
    page.keyboard.press("Escape")
    where.fill("value.channel_id ==")
    expect(page.get_by_role("alert")).to_contain_text("^", timeout=SECONDS)


def test_a_user_is_told_whole(browser, product, lived):
    """Pending, the verdict with its reasons, the map and the feed."""
    user, _ = lived
    page = browser.page(f"/user?id={user}")
    expect(page.get_by_text("Is a rebuild due?")).to_be_visible(timeout=SECONDS)
    expect(page.get_by_text("enough is new")).to_be_visible(timeout=SECONDS)
    expect(page.locator("svg.hw-map circle").first).to_be_attached(timeout=SECONDS)
    page.get_by_role("button", name="Explain").click()
    expect(page.locator(".hw-tree").first).to_contain_text("feeds.insight-ingested", timeout=SECONDS)


def test_a_digit_opens_a_page(browser, product):
    """From the keyboard alone, and not while somebody writes."""
    page = browser.page("/")
    page.wait_for_timeout(1_500)  # until the socket of the page is there, keys go nowhere
    page.keyboard.press("2")
    page.wait_for_url("**/topics", timeout=SECONDS)
    search = page.get_by_label("Find a topic")
    search.fill("league")
    search.press("1")
    assert page.url.endswith("/topics")
    expect(page.locator("tbody tr", has_text="feeds.insight-ingested")).to_have_count(0, timeout=SECONDS)


def test_the_api_stays_as_it_is(product):
    """Paths that are no pages are the API's."""
    assert product.get("/api/nothing").headers["content-type"] == "application/problem+json"
    assert product.get("/docs").status_code == 200
    assert "<html" in product.get("/").text
