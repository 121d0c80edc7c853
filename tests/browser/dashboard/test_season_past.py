"""A season as of an earlier change, in a real browser: the slider goes back over the log."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import expect

from highwater.streams.clock import ProductClock
from tests.browser.conftest import settled


def test_a_table_is_shown_as_it_was_before_a_result(browser: Any, product: Any) -> None:
    """The newest change first; one step back the match has no result; the address of that can be shared.

    The bracket and the rounds are as of then, too: one more step back there was no semi-final.
    """
    season, now_ms = f"s-{uuid.uuid4().hex[:8]}", ProductClock()()
    match = {"match_id": f"{season}-m", "season": season}
    date = {"round": "Round 1", "kickoff": now_ms - 9_000_000, "home": "Ajax", "away": "Bayern"}
    assert product.http.post("/api/events/league.match-scheduled", json={**match, **date}).status_code == 202
    schedule = f"/api/league/{season}/schedule"
    product.until(lambda: f"{season}-m" in product.get(schedule).text, "the match is not known")
    semi = {**match, **date, "match_id": f"{season}-s", "round": "Semi-final", "kickoff": now_ms + 9_000_000}
    assert product.http.post("/api/events/league.match-scheduled", json=semi).status_code == 202
    product.until(lambda: f"{season}-s" in product.get(schedule).text, "the semi-final is not known")
    result = {"home_goals": 2, "away_goals": 0, "finalized_at": now_ms}
    assert product.http.post("/api/events/league.match-finalized", json={**match, **result}).status_code == 202

    def leader() -> int:
        rows = product.get(f"/api/league/{season}/table").json()["table"]
        return max((row["points"] for row in rows), default=0)

    product.until(lambda: leader() == 3, "the result is not counted")
    page = browser.page(f"/league?key=league:table:{season}")
    page.get_by_role("button", name="Read the log").click()
    table = page.get_by_role("region", name="Table as of then")
    expect(table.locator("tbody tr").first).to_contain_text("Ajax")
    expect(table.locator("tbody tr").first.locator("td").last).to_have_text("3")
    page.get_by_label("Place in the log").focus()
    page.keyboard.press("ArrowLeft")
    expect(table.locator("tbody tr").first.locator("td").last).to_have_text("0")
    page.wait_for_url("**&position=league.match-changed*")
    earlier = parse_qs(urlsplit(page.url).query)["position"]

    def is_earlier(url: str) -> bool:
        return parse_qs(urlsplit(url).query).get("position") == earlier

    page.get_by_label("Page", exact=True).click()
    page.get_by_role("option", name="Results").click()
    expect(page.get_by_role("region", name="Results as of then").locator("tbody tr")).to_have_count(0)
    page.get_by_label("Place in the log").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("region", name="Results as of then").locator("tbody tr")).to_have_count(1)
    page.wait_for_url(lambda url: not is_earlier(url))
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("region", name="Results as of then").locator("tbody tr")).to_have_count(0)
    page.wait_for_url(lambda url: is_earlier(url) and url.endswith("&show=results"))
    page.goto(page.url)
    settled(page)
    expect(page.get_by_text("Change 2 of 3")).to_be_visible()
    page.get_by_label("Page", exact=True).click()
    page.get_by_role("option", name="Bracket").click()
    expect(page.get_by_role("region", name="Semi-final as of then").locator("td").last).to_have_text("open")
    page.get_by_label("Place in the log").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_text("so there was no bracket")).to_be_visible()
    page.get_by_label("Page", exact=True).click()
    page.get_by_role("option", name="Schedule").click()
    rounds = page.get_by_role("region", name="Schedule as of then").locator("tbody tr td:nth-child(2)")
    expect(rounds).to_have_text(["Round 1"])
    page.goto(f"/league?key=league:table:{season}&position=league.match-changed/0/99999999")
    settled(page)
    expect(page.get_by_text("The log has no change of this season at")).to_be_visible()
    page.close()
