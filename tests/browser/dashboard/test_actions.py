"""Actions in a real browser over the real product: each says what will happen, happens, and shows its position in the log."""

from __future__ import annotations

import re
import uuid
from typing import Any

from playwright.sync_api import expect


def status_of(product: Any, request_id: str) -> str | None:
    """Where a query stands; None before it is stored."""
    answer = product.get(f"/api/query/{request_id}/status")
    return answer.json()["status"] if answer.status_code == 200 else None


def test_a_query_is_cancelled_and_restarted(browser: Any, product: Any):
    """Cancelled while no worker goes on, with its position; restarted from the first stage, answered, on a timeline."""
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
    expect(page.get_by_role("dialog")).to_contain_text("The answer is asked again from stage Analyzer")
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


def test_what_does_not_exist_says_where_to_go_on(browser: Any):
    """A query and a job that nobody knows: words and a link, no empty page."""
    context = browser.context()
    for path, listed in (("/queries", "See the latest queries"), ("/jobs", "See the latest jobs")):
        page = browser.page(f"{path}/{uuid.uuid4()}", context)
        expect(page.get_by_role("link", name=listed)).to_have_attribute("href", path)
        expect(page.get_by_role("button", name=re.compile("Restart|Cancel"))).to_have_count(0)
        page.close()
    context.close()
