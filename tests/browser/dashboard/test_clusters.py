"""The clusters of a user in a real browser: the map is zoomed, moved and clicked, and an earlier version is shown as it was."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from playwright.sync_api import expect

from highwater.streams.clock import ProductClock
from tests.browser.conftest import settled

WORDS = (
    "rebalance of consumer groups",
    "release notes of the broker",
    "schema registry compatibility",
    "vacuum and locks",
)


@pytest.fixture(scope="module")
def user(product: Any) -> str:
    """A user with two versions of clusters: the second has insights on one more theme."""
    name, channel = f"u-{uuid.uuid4().hex[:8]}", f"c-{uuid.uuid4().hex[:8]}"
    product.subscribe(name, [channel])
    for version in (1, 2):
        themes, now_ms = WORDS[: version + 2], ProductClock()()
        rows = (
            {"insight_id": f"{channel}-{version}-{n}", "channel_id": channel, "ts": now_ms - n, "text": f"{theme} {n}"}
            for n in range(30)
            for theme in themes
        )
        unique = ({**row, "insight_id": f"{row['insight_id']}-{place}"} for place, row in enumerate(rows))
        body = "".join(json.dumps(row) + "\n" for row in unique)
        kind = {"content-type": "application/x-ndjson"}
        answer = product.http.post("/api/events/feeds.insight-ingested", content=body, headers=kind)
        assert answer.status_code == 202, answer.text
        if version > 1:
            product.until(lambda: product.pending(name)["pending"] > 0, "nothing is pending")
            assert product.http.post(f"/api/users/{name}/rebuild").status_code == 202
        product.until(
            lambda number=version: product.pending(name)["cluster_version"] >= number, f"no version {version}", 120
        )
    return name


def clusters(product: Any, user: str, version: int) -> list[dict[str, Any]]:
    """The clusters of a version."""
    found: list[dict[str, Any]] = product.get(f"/api/users/{user}/clusters?version={version}").json()["clusters"]
    return found


def test_a_point_of_the_map_leads_to_its_cluster_and_its_members(browser: Any, product: Any, user: str) -> None:
    """Pointing shows the text; a click shows the members, explained and with links; the address can be shared."""
    page = browser.page(f"/user?id={user}")
    newest = product.pending(user)["cluster_version"]
    one = clusters(product, user, newest)[0]
    point = page.locator(f"svg.hw-map circle[data-id='{one['insight_ids'][0]}']")
    point.hover(force=True)
    expect(page.locator(".hw-zoom-hint")).not_to_be_empty()
    point.click(force=True)
    expect(page.locator("#cluster")).to_have_text(one["title"])
    page.wait_for_url(f"**/user?id={user}&cluster={one['cluster_id']}")
    page.goto(page.url)
    settled(page)
    expect(page.locator("#cluster")).to_have_text(one["title"])
    page.get_by_role("button", name="Explain this cluster").click()
    expect(page.locator(".hw-tree").first).to_contain_text("of its insights entered it in version")
    page.locator("tr a[href*='/insight?']").first.click()
    page.wait_for_url("**/insight?channel=*")
    page.close()


def test_the_map_is_zoomed_moved_and_selected_from(browser: Any, user: str) -> None:
    """By buttons, by keys and by the wheel; a line drawn around all points selects them all."""
    page = browser.page(f"/user?id={user}")
    stage, picture = page.locator(".hw-zoom-stage"), page.locator("svg.hw-map")

    def box() -> list[float]:
        return [float(number) for number in picture.get_attribute("viewBox").split()]

    whole = box()
    page.get_by_role("button", name="Zoom in").click()
    closer = box()
    assert closer[2] == pytest.approx(whole[2] / 1.4)
    stage.focus()
    page.keyboard.press("ArrowRight")
    assert box()[0] > closer[0]
    page.keyboard.press("Home")
    assert box() == whole
    stage.hover()
    page.mouse.wheel(0, -300)
    page.wait_for_function("document.querySelector('svg.hw-map').viewBox.baseVal.width < 800")
    page.get_by_role("button", name="Whole map").click()
    page.get_by_role("button", name="Select").click()
    place = picture.bounding_box()
    left, top = place["x"] + 3, place["y"] + 3
    right, bottom = place["x"] + place["width"] - 3, place["y"] + place["height"] - 3
    page.mouse.move(left, top)
    page.mouse.down()
    for x, y in ((right, top), (right, bottom), (left, bottom)):
        page.mouse.move(x, y, steps=3)
    page.mouse.up()
    expect(page.locator("#cluster")).to_have_text(f"{page.locator('svg.hw-map circle').count():,} insights selected")
    page.close()


def test_an_earlier_version_is_shown_as_it_was(browser: Any, product: Any, user: str) -> None:
    """The slider moves map, feed and table to it; the address names it; for one that is not kept the page says so."""
    newest = product.pending(user)["cluster_version"]
    first, last = clusters(product, user, 1), clusters(product, user, newest)
    page = browser.page(f"/user?id={user}")
    expect(page.get_by_text(f"Version {newest} (now)")).to_be_visible()
    points = page.locator("svg.hw-map circle")
    expect(points).to_have_count(page.evaluate("document.querySelectorAll('svg.hw-map circle').length"))
    before = points.count()
    page.get_by_label("Version of the clusters").focus()
    page.keyboard.press("Home")
    expect(page.get_by_text("Version 1 (as of then")).to_be_visible()
    expect(page.locator("tr[aria-current] td").first).to_have_text("1")
    expect(page.locator(".hw-items li")).to_have_count(min(12, len(first)))
    expect(page.locator(".hw-items li b").first).to_have_text(first[0]["title"])
    assert points.count() < before
    assert len(last) >= len(first)
    page.wait_for_url(f"**/user?id={user}&version=1")
    page.get_by_role("button", name="Back to now").click()
    expect(points).to_have_count(before)
    page.goto(f"/user?id={user}&version=999")
    settled(page)
    expect(page.get_by_role("alert")).to_contain_text("There is no version 999")
    expect(page.locator("svg.hw-river polygon").first).to_be_attached()
    page.close()
