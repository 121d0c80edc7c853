"""The topic browser's search in a real browser: records far from the end are found, page by page, and shown completely."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from highwater.streams.clock import ProductClock, to_datetime

INSIGHTS = "feeds.insight-ingested"
COUNT, NEEDLES = 4_503, 7


@pytest.fixture(scope="module")
def mark(product: Any) -> str:
    """4,503 insights, the oldest seven of which hold a needle."""
    found = f"b{uuid.uuid4().hex[:10]}"
    rows = [
        {"insight_id": f"{found}-{n}", "channel_id": found, "ts": n, "text": f"needle {n}" if n < NEEDLES else "straw"}
        for n in range(COUNT)
    ]
    body = "".join(json.dumps(row) + "\n" for row in rows)
    kind = {"content-type": "application/x-ndjson"}
    answer = product.http.post(f"/api/events/{INSIGHTS}", content=body, headers=kind)
    assert answer.status_code == 202, answer.text
    return found


def test_a_search_finds_what_is_far_from_the_end(browser: Any, mark: str, tmp_path: Path):
    """All seven of 4,503; a record opens whole, the link gives the same, the file holds them; a bad condition shows its spot."""
    page = browser.page(f"/browse?topic={INSIGHTS}")
    where = page.get_by_label("Where (CEL)")
    where.fill(f'value.channel_id == "{mark}" && value.text.startsWith("needle")')
    where.press("Enter")
    page.wait_for_url("**search=1*")
    rows = page.locator("tbody tr")
    expect(page.get_by_text("all records were read")).to_contain_text("7 found")
    expect(rows).to_have_count(NEEDLES)
    rows.first.locator("a").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"{mark}-6")
    expect(dialog.get_by_role("link", name="in feeds.channel-advanced")).to_be_visible()
    page.keyboard.press("Escape")
    with page.expect_download() as download:
        page.get_by_role("link", name="jsonl").click()
    download.value.save_as(tmp_path / "found")
    assert len((tmp_path / "found").read_text(encoding="utf-8").splitlines()) == NEEDLES
    again = browser.page(page.url)
    expect(again.locator("tbody tr")).to_have_count(NEEDLES)
    again.close()
    where.fill("value.channel_id ==")
    where.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("^")
    page.close()


def test_pages_and_columns(browser: Any, mark: str):
    """Oldest first, fifty per page: the second continues where the first ended, also after a reload; columns stay in the
    address.
    """
    page = browser.page(f"/browse?topic={INSIGHTS}&search=1&order=oldest&key={mark}&columns=insight_id")
    ids = page.locator("tbody td:nth-child(4)")
    expect(ids).to_have_count(50)
    expect(page.get_by_text(re.compile("are not read yet"))).to_be_visible()
    first = ids.all_inner_texts()
    page.get_by_role("button", name="Next page").click()
    page.wait_for_url("**cursor=*")
    expect(ids).to_have_count(50)
    expect(page.get_by_text(re.compile("are not read yet"))).to_contain_text("100 found")
    second = ids.all_inner_texts()
    assert first + second == [f"{mark}-{n}" for n in range(100)]
    page.reload()
    expect(ids).to_have_count(50)
    assert ids.all_inner_texts() == second
    page.close()


def test_a_search_begins_at_a_time(browser: Any, product: Any, mark: str):
    """Records before that moment are not read: of all records since the day began, the latest is found alone."""
    at = to_datetime(ProductClock()())
    event = {"insight_id": f"{mark}-late", "channel_id": mark, "ts": COUNT, "text": "late"}
    assert product.http.post(f"/api/events/{INSIGHTS}", json=event).status_code == 202
    page = browser.page(f"/browse?topic={INSIGHTS}&key={mark}&columns=insight_id")
    page.get_by_label("From", exact=True).fill(at.isoformat())
    page.get_by_label("From", exact=True).press("Enter")
    page.wait_for_url("**search=1*")
    expect(page.get_by_text("all records were read")).to_contain_text("1 found")
    expect(page.locator("tbody td:nth-child(4)")).to_have_text([f"{mark}-late"])
    page.close()
