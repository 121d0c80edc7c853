"""The dashboard in a real browser over the real product: every page shows what the product did, live."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from highwater.streams.clock import ProductClock
from tests.browser.conftest import settled

PATHS = (
    *("/", "/topics", "/browse", "/user", "/league", "/queries", "/jobs", "/chunks", "/dead-letters", "/policies"),
    *("/sql", "/groups", "/schemas"),
)
INSIGHTS = "feeds.insight-ingested"


def send(product: Any, rows: list[dict[str, Any]]) -> None:
    """Insights through the API: a command would take a second of start each."""
    body = "".join(json.dumps(row) + "\n" for row in rows)
    kind = {"content-type": "application/x-ndjson"}
    answer = product.http.post(f"/api/events/{INSIGHTS}", content=body, headers=kind)
    assert answer.status_code == 202, answer.text


@pytest.fixture(scope="module")
def lived(product):
    """A product in which a user has clusters."""
    user, channel = f"u-{uuid.uuid4().hex[:8]}", f"c-{uuid.uuid4().hex[:8]}"
    product.subscribe(user, [channel])
    words = ("rebalance of consumer groups", "release notes of the broker", "schema registry compatibility")
    now_ms = ProductClock()()
    send(product, [
        {"insight_id": f"{channel}-{n}", "channel_id": channel, "ts": now_ms - n, "text": f"{words[n % 3]} {n}"}
        for n in range(90)
    ])  # fmt: skip
    product.until(lambda: product.pending(user)["cluster_version"] > 0, "no clusters", 120)
    return user, channel


@pytest.fixture(scope="module", params=["light", "dark"])
def window(browser, request) -> Iterator[Any]:
    """A window of a system that wants light, and of one that wants dark."""
    context = browser.context(scheme=request.param)
    yield context, request.param
    context.close()


@pytest.fixture(scope="module")
def phone(browser) -> Iterator[Any]:
    """A window as narrow as a phone."""
    context = browser.context(width=390, height=844)
    yield context
    context.close()


@pytest.mark.parametrize("path", PATHS)
def test_every_page_opens(browser, window, path):
    """Without an error, without a request elsewhere, in the mode of the system; its name is its heading and its link."""
    context, scheme = window
    page = browser.page(path, context)
    link = page.locator("nav a[aria-current=page]")
    expect(link).to_have_attribute("href", path)
    expect(page.locator("h1")).to_have_text(re.sub(r"(hub|list|\d)$", "", link.inner_text().split("\n")[1]).strip())
    expect(page.locator(f"body.body--{scheme}")).to_be_attached()
    page.close()


@pytest.mark.parametrize("path", PATHS)
def test_a_phone_scrolls_in_one_direction(browser, phone, path):
    """Wide elements scroll within themselves."""
    page = browser.page(path, phone)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def test_the_overview_moves(browser, product, lived):
    """The services are ready, and published events show on the edges."""
    _, channel = lived
    page = browser.page("/")
    expect(page.get_by_text("✓ kafka")).to_be_visible()
    expect(page.locator("svg.hw-flow")).to_have_count(6)
    send(product, [
        {"insight_id": f"{channel}-r{n}", "channel_id": channel, "ts": 1_700_000_000_000, "text": "x"} for n in range(1_000)
    ])  # fmt: skip
    expect(page.locator(".hw-edge.on").first).to_be_attached()
    page.close()


def test_records_are_followed(browser, product, lived):
    """A record that comes while the page is open is there."""
    _, channel = lived
    page = browser.page(f"/browse?topic={INSIGHTS}")
    expect(page.locator("tbody tr").first).to_be_visible()
    needle = f"needle-{uuid.uuid4().hex}"
    row = {"insight_id": needle, "channel_id": channel, "ts": 1_700_000_000_000, "text": "found in a haystack"}
    send(product, [row])
    expect(page.locator("tbody tr", has_text=needle)).to_have_count(1)
    page.close()


def test_what_is_held_stands_still(browser, product, lived):
    """Nothing is added while it is held, and the records that arrived meanwhile are shown when it continues."""
    _, channel = lived
    page = browser.page(f"/browse?topic={INSIGHTS}")
    page.get_by_role("button", name="Hold").click()
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    first, later = f"held-{uuid.uuid4().hex}", browser.page(f"/browse?topic={INSIGHTS}")
    send(product, [{"insight_id": first, "channel_id": channel, "ts": 1_700_000_000_000, "text": "while it was held"}])
    expect(later.locator("tbody tr", has_text=first)).to_have_count(1)  # visible in every view that is not held
    expect(page.locator("tbody tr", has_text=first)).to_have_count(0)
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("tbody tr", has_text=first)).to_have_count(1)
    later.close()
    page.close()


def test_a_user_is_told_whole(browser, lived):
    """The verdict with its reasons, the map, the feed, and its explanation down to the insight, as a graph and as a list."""
    user, channel = lived
    page = browser.page(f"/user?id={user}")
    expect(page.get_by_text("Is a rebuild due?")).to_be_visible()
    expect(page.get_by_text("enough new insights")).to_be_visible()
    expect(page.locator("svg.hw-map circle").first).to_be_attached()
    page.get_by_role("button", name="Explain").click()
    insight = page.locator(".hw-tree li:not(:has(li))", has_text=f"{INSIGHTS}/").first
    expect(insight).to_contain_text(channel)
    expect(insight).to_be_visible()
    box = page.locator("svg.hw-graph a[href*='/insight?']").first
    box.focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/insight?channel={channel}&id={channel}-*")
    page.close()


def test_the_keyboard_alone_suffices(browser):
    """Tab skips or walks the navigation, seen at each step; Enter opens; a digit does, but not in a field."""
    page = browser.page("/")
    page.keyboard.press("Tab")
    focused = "document.activeElement"
    assert page.evaluate(f"{focused}.className") == "hw-skip"
    reached = []
    for _ in range(3 + len(PATHS)):  # the buttons and the name in the header, then the pages
        page.keyboard.press("Tab")
        reached.append(page.evaluate(f"{focused}.getAttribute('href') || {focused}.getAttribute('aria-label')"))
        assert page.evaluate(f"getComputedStyle({focused}).outlineStyle") == "solid", reached
    assert [path for path in reached if path in PATHS[1:]] == list(PATHS[1:])
    page.locator("nav a[href='/policies']").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/policies")
    settled(page)
    page.keyboard.press("2")
    page.wait_for_url("**/topics")
    settled(page)
    search = page.get_by_label("Find a topic")
    search.fill("league")
    search.press("1")
    topics = page.locator(".hw-topics tbody tr")
    expect(topics).to_have_count(0)
    search.press("Backspace")
    expect(topics.first).to_contain_text("league.")
    expect(topics.filter(has_text=INSIGHTS)).to_have_count(0)
    assert page.url.endswith("/topics?find=league")
    page.close()


def test_a_policy_is_tried_over_what_happened(browser, lived):
    """The live policy and the other one side by side, as figures and as a plot; an unreadable policy gives one line."""
    page = browser.page("/policies")
    page.get_by_label("Readers").fill("10")
    page.get_by_role("button", name="Run").click()
    lines = page.locator("table").nth(1).locator("tbody tr")
    expect(lines).to_have_count(2)
    expect(lines.first).to_contain_text("live")
    expect(page.locator("svg.hw-plot")).to_contain_text("rebuilds per user and day")
    page.get_by_label("Another policy").fill("[plans.pro]\nnovelty = -1\n")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".hw-banner")).to_contain_text("novelty")
    page.close()


def test_the_theme_is_chosen_and_kept(browser):
    """The system's preference holds until another theme is chosen; the choice outlives the page."""
    context = browser.context(scheme="light")
    page = browser.page("/policies", context)
    page.get_by_label("Light, dark, or as the system has it").click()
    expect(page.locator("body.body--dark")).to_be_attached()
    page.close()
    again = browser.page("/policies", context)
    expect(again.locator("body.body--dark")).to_be_attached()
    context.close()


def test_no_script_runs_that_a_page_did_not_come_with(browser):
    """An injected script runs neither as an element nor as an attribute."""
    page = browser.context().new_page()  # not watched: it is made to report what goes wrong
    policy = page.goto("/").headers["content-security-policy"]
    settled(page)
    assert re.search(r"script-src 'self' 'nonce-[\w-]{20,}' 'unsafe-eval';", policy)
    refused = page.evaluate(
        """async () => {
            const refused = [];
            document.addEventListener("securitypolicyviolation", event => refused.push(event.effectiveDirective));
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            const image = document.createElement("div");
            image.innerHTML = '<img src="data:," onerror="window.ran = true">';
            document.body.append(script, image);
            while (refused.length < 2) await new Promise(resolve => setTimeout(resolve, 20));
            return [window.ran === undefined, ...refused.sort()];
        }"""
    )
    assert refused == [True, "script-src-attr", "script-src-elem"]
    page.context.close()


def test_the_api_stays_as_it_is(product):
    """Paths that are no pages are the API's."""
    assert product.get("/api/nothing").headers["content-type"] == "application/problem+json"
    assert product.get("/docs").status_code == 200
    assert "<html" in product.get("/").text
