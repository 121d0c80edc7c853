"""Actions in a real browser over the real product: each says what will happen, happens, and shows its position in the log."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from playwright.sync_api import expect

from highwater.streams.clock import ProductClock


def status_of(product: Any, request_id: str) -> str | None:
    """Where a query stands; None before it is stored."""
    answer = product.get(f"/api/query/{request_id}/status")
    return answer.json()["status"] if answer.status_code == 200 else None


def test_a_query_is_cancelled_and_restarted(browser: Any, product: Any):
    """Cancelled while no worker runs, with its position; restarted from the first stage, answered, on a timeline."""
    asked = {"user_id": str(uuid.uuid4()), "query": "What changed in the broker?"}
    with product.frozen(product.role_pid("workers")):
        request_id = product.http.post("/api/query", json=asked).json()["request_id"]
        product.until(lambda: status_of(product, request_id), "the query is not stored")
        page = browser.page(f"/queries/{request_id}")
        expect(page.get_by_text("There is no answer yet")).to_be_visible()
        page.get_by_role("button", name="Cancel", exact=True).click()
        expect(page.get_by_role("dialog")).to_contain_text("fails as cancelled")
        page.get_by_role("button", name="Cancel the query").click()
        told = page.get_by_text("The query is being cancelled")
        expect(told.get_by_role("link")).to_have_attribute("href", re.compile("topic=queries.run-controlled&.*record="))
        expect(page.locator(".hw-card").first).to_contain_text("failed")
    page.get_by_role("button", name="Restart from analyzer").click()
    expect(page.get_by_role("dialog")).to_contain_text("The answer is computed again from stage Analyzer")
    page.get_by_role("button", name="Restart", exact=True).click()
    page.get_by_role("link", name="open the new query").click()
    expect(page.locator(".hw-answer")).to_be_visible()
    expect(page.get_by_text("restarted from")).to_be_visible()
    attempts = page.get_by_role("region", name="Stages and their calls")
    expect(attempts).to_contain_text("responder")
    expect(page.locator(".hw-gantt-track i.call").first).to_be_attached()
    statuses = page.get_by_role("region", name="Statuses in the log")
    expect(statuses.locator("tr", has_text="completed").get_by_role("link").first).to_have_attribute(
        "href", re.compile("topic=queries.pipeline-stage&.*record=")
    )
    page.close()


def publish(product: Any, topic: str, **event: Any) -> None:
    """One event through the API."""
    answer = product.http.post(f"/api/events/{topic}", json=event)
    assert answer.status_code == 202, answer.text


def test_a_user_is_rebuilt_an_insight_retracted_and_the_user_erased(browser: Any, product: Any):
    """Each from its page: the outcome of the rebuild is listed, the insight is removed, and erasing requires the typed name."""
    user, channel = f"u-{uuid.uuid4().hex[:8]}", f"c-{uuid.uuid4().hex[:8]}"
    product.subscribe(user, [channel])
    insight = {
        "insight_id": f"{channel}-1",
        "channel_id": channel,
        "ts": ProductClock()(),
        "text": "a broker was added",
    }
    publish(product, "feeds.insight-ingested", **insight)
    product.until(lambda: product.pending(user)["pending"] == 1, "the insight is not stored")
    page = browser.page(f"/user?id={user}")
    page.get_by_role("button", name="Rebuild now").click()
    expect(page.get_by_role("dialog")).to_contain_text("1 are pending")
    page.get_by_role("button", name="Rebuild now").last.click()
    expect(page.get_by_text("A rebuild was requested")).to_contain_text("feeds.rebuild-demanded/")
    outcome = page.locator(".hw-card", has_text="Manual rebuilds").last
    expect(outcome).to_contain_text(re.compile("rebuilt|unchanged|skipped"))
    page.goto(f"/insight?channel={channel}&id={channel}-1")
    page.get_by_role("button", name="Retract").click()
    expect(page.get_by_role("dialog")).to_contain_text("cannot be restored")
    page.get_by_role("dialog").get_by_role("button", name="Retract").click()
    expect(page.get_by_text("The insight is being retracted")).to_contain_text("feeds.insight-retracted/")
    expect(page.get_by_text("retracted", exact=True)).to_be_visible()
    page.goto(f"/user?id={user}")
    page.get_by_role("button", name="Erase the user's data").click()
    erase = page.get_by_role("button", name="Erase", exact=True)
    expect(erase).to_be_disabled()
    page.get_by_label(f"Type {user} to confirm").fill(user)
    erase.click()
    expect(page.get_by_text("is being erased")).to_contain_text("feeds.user-erased/")
    product.until(lambda: product.get(f"/api/users/{user}/subscriptions").json()["channels"] == [], "not erased")
    page.close()


@pytest.mark.parametrize("who", [None, "assistant"])
def test_a_match_is_finalized(browser: Any, product: Any, guarded: Any, who: str | None):
    """With its score, and said in words before; the result is shown, and a second one is called a correction. A judge's key
    is enough, though it is bound to its user.
    """
    match, season = f"m-{uuid.uuid4().hex[:8]}", f"s-{uuid.uuid4().hex[:8]}"
    now_ms = ProductClock()()
    publish(
        product, "league.match-scheduled", match_id=match, season=season, round="1", kickoff=now_ms, time_unknown=False,
        home="Reds", away="Blues", status="scheduled",
    )  # fmt: skip
    product.until(lambda: product.get(f"/api/matches/{match}").status_code == 200, "the match is not known")
    path = f"/match?id={match}"
    page = browser.page(path) if who is None else guarded.browser.page(path, guarded.signed_in(who))
    page.get_by_role("button", name="Finalize").click()
    expect(page.get_by_text("needs two whole numbers")).to_be_visible()
    page.get_by_label("Goals of the home side").fill("2")
    page.get_by_label("Goals of the away side").fill("1")
    page.get_by_role("button", name="Finalize").click()
    expect(page.get_by_role("dialog")).to_contain_text("The result is Reds 2 : 1 Blues")
    page.get_by_role("dialog").get_by_role("button", name="Finalize").click()
    expect(page.get_by_text("The result was published")).to_contain_text("league.match-finalized/")
    expect(page.locator(".hw-facts")).to_contain_text("2 : 1")
    expect(page.get_by_role("button", name="Correct the result")).to_be_visible()
    page.close()


def test_what_does_not_exist_says_where_to_go_on(browser: Any):
    """An unknown query and an unknown job: a text and a link, not an empty page."""
    context = browser.context()
    for path, listed in (("/queries", "See the latest queries"), ("/jobs", "See the latest jobs")):
        page = browser.page(f"{path}/{uuid.uuid4()}", context)
        expect(page.get_by_role("link", name=listed)).to_have_attribute("href", path)
        expect(page.get_by_role("button", name=re.compile("Restart|Cancel"))).to_have_count(0)
        page.close()
    context.close()
