"""The SQL page in a real browser: a query, its rows, the file and the link, and what an error or an empty answer says."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

TABLE = "feeds.insight_ingested"
COUNT = 40


@pytest.fixture(scope="module")
def mark(product: Any) -> str:
    """Forty insights."""
    found = f"q{uuid.uuid4().hex[:10]}"
    rows = [{"insight_id": f"{found}-{n}", "channel_id": found, "ts": n, "text": "straw"} for n in range(COUNT)]
    body = "".join(json.dumps(row) + "\n" for row in rows)
    kind = {"content-type": "application/x-ndjson"}
    answer = product.http.post("/api/events/feeds.insight-ingested", content=body, headers=kind)
    assert answer.status_code == 202, answer.text
    return found


def test_a_query_is_written_run_shared_and_exported(browser: Any, mark: str, tmp_path: Path):
    """Rows with the scanned number; the address gives them again, the file contains them; an error names the next step.

    A plan shows which conditions reach the log.
    """
    page = browser.page("/sql")
    expect(page.get_by_role("link", name="Busiest channels of the last hour")).to_be_visible()
    page.locator("summary", has_text="feeds.insight_ingested").first.click()
    page.get_by_role("link", name="Query it").locator("visible=true").click()
    editor = page.get_by_label("Query", exact=True)
    expect(editor).to_have_value(f"SELECT *\nFROM {TABLE}\nLIMIT 50")
    editor.fill(f"SELECT channel_id, count(*) AS n FROM {TABLE} WHERE channel_id = '{mark}' GROUP BY ALL")
    editor.press("Control+Enter")
    page.wait_for_url("**run=1*")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody td")).to_have_text([mark, str(COUNT)])
    expect(page.get_by_role("status").get_by_text("1 row in")).to_contain_text("records of feeds.insight-ingested")
    with page.expect_download() as download:
        page.get_by_role("link", name="jsonl").click()
    download.value.save_as(tmp_path / "found")
    assert json.loads((tmp_path / "found").read_text(encoding="utf-8")) == {"channel_id": mark, "n": COUNT}
    again = browser.page(page.url)
    expect(again.locator("tbody td")).to_have_text([mark, str(COUNT)])
    again.close()
    editor.fill(f"SELECT chanel_id FROM {TABLE}")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_contain_text("did you mean channel_id?")
    editor.fill(f"SELECT 1 FROM {TABLE} WHERE _timestamp > now() + INTERVAL 1 DAY")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("No row meets the conditions.")).to_be_visible()
    editor.fill(f"-- why so slow?\nEXPLAIN SELECT channel_id FROM {TABLE} WHERE _partition = 1")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".hw-plan").get_by_role("region", name="Rows")).to_contain_text('"_partition" = 1')
    page.close()
