"""Takes the moving picture of the README from a running product: `python -m tests.browser.moving_picture URL`.

Insights move through the overview, the reader of the bundled sample is rebuilt and its map has more clusters, and the
explanation leads from the served result back to the events. Run it on a separate product that holds the sample (`highwater up`).
"""

from __future__ import annotations

import argparse
import io
import json
import re
import time
import uuid
from typing import Any

import httpx2
from PIL import Image
from playwright.sync_api import expect, sync_playwright

from highwater.api.cli.sample import READER
from highwater.streams.clock import ProductClock
from tests.browser.conftest import CHROMIUM, TIMEOUT_MS, settled
from tests.browser.screenshots import FOLDER

TARGET = FOLDER / "tour.webp"
BYTES_MAX = 1_000_000
WIDTH, HEIGHT, SHOWN = 1_360, 850, 960
_CHANNEL = "apache/kafka"
_THEMES = ("share groups acknowledge records one by one", "tiered storage copies old segments to an object store")
_PER_THEME = 40


class Film:
    """Frames with the time that each is shown."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._frames: list[Image.Image] = []
        self._shown_ms: list[int] = []

    def take(self, shown_ms: int) -> None:
        """One frame of what the page shows now."""
        with Image.open(io.BytesIO(self._page.screenshot())) as png:
            picture = png.convert("RGB").resize((SHOWN, SHOWN * HEIGHT // WIDTH), Image.Resampling.LANCZOS)
        self._frames.append(picture)
        self._shown_ms.append(shown_ms)

    def save(self) -> None:
        """Write it as an animated WebP."""
        first, *others = self._frames
        first.save(
            TARGET, save_all=True, append_images=others, duration=self._shown_ms, loop=0, quality=60, method=6, minimize_size=True
        )  # fmt: skip


def main() -> None:
    """Make the picture."""
    parser = argparse.ArgumentParser(description="Takes the moving picture of the README from a running product.")
    parser.add_argument("url")
    url = parser.parse_args().url
    with httpx2.Client(base_url=url, timeout=60) as http, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        expect.set_options(timeout=TIMEOUT_MS)
        page = chromium.new_context(base_url=url, viewport={"width": WIDTH, "height": HEIGHT}).new_page()
        page.set_default_timeout(TIMEOUT_MS)
        film = Film(page)
        _flow(http, page, film)
        _rebuild(page, film)
        _explain(page, film)
        film.save()
        chromium.close()
    size = TARGET.stat().st_size
    assert size <= BYTES_MAX, f"{TARGET.name} has {size:,} bytes"


def _flow(http: httpx2.Client, page: Any, film: Film) -> None:
    page.goto("/")
    settled(page)
    page.wait_for_selector(".hw-tile .hw-spark")
    film.take(1_200)
    _publish(http)
    page.wait_for_selector(".hw-edge.on")
    for _ in range(8):
        film.take(250)
        time.sleep(0.3)  # between two frames


def _publish(http: httpx2.Client) -> None:
    now_ms = ProductClock()()
    rows = [
        {"insight_id": uuid.uuid4().hex, "channel_id": _CHANNEL, "ts": now_ms - n, "text": f"{theme} (#{n})"}
        for n in range(_PER_THEME)
        for theme in _THEMES
    ]
    body = "".join(json.dumps(row) + "\n" for row in rows)
    answer = http.post(
        "/api/events/feeds.insight-ingested", content=body, headers={"content-type": "application/x-ndjson"}
    )
    answer.raise_for_status()


def _rebuild(page: Any, film: Film) -> None:
    page.goto(f"/user?id={READER}")
    settled(page)
    film.take(1_300)
    page.get_by_role("button", name="Rebuild now").first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.wait_for_timeout(400)  # until the dialog is wholly there
    film.take(1_200)
    page.get_by_role("button", name="Rebuild now").last.click()
    expect(page.locator(".hw-tile", has_text="insights pending")).to_have_text(re.compile(r"^\s*0\s*insights"))
    expect(page.get_by_role("dialog")).to_have_count(0)
    film.take(1_000)
    page.locator("svg.hw-map").scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    film.take(1_800)


def _explain(page: Any, film: Film) -> None:
    page.get_by_role("button", name="Explain").first.click()
    graph = page.locator("svg.hw-graph").first
    expect(graph).to_be_visible()
    graph.evaluate("(drawing) => drawing.closest('.hw-card').scrollIntoView()")
    page.wait_for_timeout(400)
    film.take(2_600)


if __name__ == "__main__":
    main()
