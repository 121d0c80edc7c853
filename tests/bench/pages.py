"""How soon a page of the console can be used beside a busy stack: `python -m tests.bench.pages URL`, on a product with a sample.

With a second address, such as that of an API process of another version over the same product, loads of both are made in turns,
so that both have the same machine. Insights flow meanwhile. Each load is that of a browser with an empty cache. A page is
interactive when its socket is connected, it was filled once and shows its first row or figure, and no task of its thread that is
longer than 50 ms has begun since.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx2
from playwright.sync_api import sync_playwright

from highwater.api.cli.sample import READER
from highwater.streams.clock import ProductClock
from tests.browser.conftest import CHROMIUM, TIMEOUT_MS

# The overview and the three pages that show most, each with what it shows first.
PAGES = {
    "/": ".hw-tile b",
    "/topics": ".hw-topics tbody tr",
    "/browse?topic=feeds.insight-ingested": "tbody tr",
    f"/user?id={READER}": "svg.hw-map circle",
}
RATE_PER_SECOND, BATCHES_PER_SECOND = 100, 5
_WATCH = """(first) => {
  window.longTasks = [];
  new PerformanceObserver((list) => longTasks.push(...list.getEntries().map((one) => [one.startTime, one.duration])))
    .observe({ type: "longtask", buffered: true });
  const look = () => {
    const isFilled = window.did_handshake && document.querySelector(first) && !document.querySelector("[aria-busy=true]");
    if (isFilled) window.filledAt = performance.now(); else requestAnimationFrame(look);
  };
  look();
}"""
_READ = """() => {
  const ends = longTasks.map(([start, duration]) => start + duration).filter((end) => end <= filledAt + 1000);
  return {
    painted: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? NaN,
    interactive: Math.max(filledAt, ...ends.filter((end) => end > filledAt)),
    long: longTasks.reduce((sum, [, duration]) => sum + duration, 0),
    server: performance.getEntriesByType("navigation")[0].responseEnd,
  };
}"""


class Load(NamedTuple):
    """One load, in milliseconds: the HTML has come, something is painted, it can be used; long tasks; processor time of the page.

    The last one hardly depends on what else the machine does.
    """

    server: float
    painted: float
    interactive: float
    long: float
    processor: float


@contextmanager
def flowing(url: str) -> Iterator[None]:
    """Insights that come all the time."""
    ended = threading.Event()

    def publish() -> None:
        with httpx2.Client(base_url=url, timeout=60) as http:
            while not ended.wait(1 / BATCHES_PER_SECOND):
                now_ms = ProductClock()()
                rows = [
                    {"insight_id": uuid.uuid4().hex, "channel_id": "bench", "ts": now_ms, "text": f"insight {number}"}
                    for number in range(RATE_PER_SECOND // BATCHES_PER_SECOND)
                ]
                body = "".join(json.dumps(row) + "\n" for row in rows)
                kind = {"content-type": "application/x-ndjson"}
                http.post("/api/events/feeds.insight-ingested", content=body, headers=kind).raise_for_status()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def load(chromium: Any, url: str, path: str, first: str) -> Load:
    """One load with an empty cache."""
    context = chromium.new_context(base_url=url, viewport={"width": 1_360, "height": 900})
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    devtools = context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.add_init_script(f"({_WATCH})({json.dumps(first)})")
    page.goto(path)
    page.wait_for_function("window.filledAt && performance.now() > filledAt + 1000")
    found = page.evaluate(_READ)
    used = {one["name"]: one["value"] for one in devtools.send("Performance.getMetrics")["metrics"]}
    context.close()
    return Load(found["server"], found["painted"], found["interactive"], found["long"], 1_000 * used["TaskDuration"])


def line(name: str, loads: Sequence[Load]) -> str:
    """The loads of a page as a line of the table, with the load average of the machine."""
    server, painted, interactive, long, processor = (statistics.median(values) for values in zip(*loads, strict=True))
    worst = max(one.interactive for one in loads)
    return (
        f"| `{name}` | {server:.0f} | {painted:.0f} | {interactive:.0f}, {worst:.0f} | {long:.0f} | {processor:.0f} "
        f"| {os.getloadavg()[0]:.0f} |"
    )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Measures how soon pages of the console can be used.")
    parser.add_argument("url", nargs="+")
    parser.add_argument("--loads", type=int, default=5)
    asked = parser.parse_args()
    with flowing(asked.url[0]), sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        time.sleep(2)  # the flow has begun
        print(
            "| page | HTML, ms | first paint, ms | interactive, ms: median, worst | long tasks, ms | processor, ms | load |\n"
            "|---|---|---|---|---|---|---|"
        )
        for path, first in PAGES.items():
            for url in asked.url:
                load(chromium, url, path, first)  # what the process reads and packs once
            turns = [[load(chromium, url, path, first) for url in asked.url] for _ in range(asked.loads)]
            for url, loads in zip(asked.url, zip(*turns, strict=True), strict=True):
                print(line(path if len(asked.url) == 1 else f"{url}{path}", loads), flush=True)
        chromium.close()


if __name__ == "__main__":
    main()
