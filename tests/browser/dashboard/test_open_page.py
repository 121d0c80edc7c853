"""A page that stays open for a working day holds no more in the evening than in the morning."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.browser.growth import OpenPage, growth

INSIGHTS = "feeds.insight-ingested"
UPDATES, ROUNDS = 5, 12
# The limit for eight hours, computed from sixty updates: engines free late, so some megabytes are noise. A page that keeps its
# updates adds 120 to 280 MB.
MB_MAX, NODES_MAX, LISTENERS_MAX = 60, 3_000, 300


@pytest.fixture(scope="module")
def flow(product: Any) -> Iterator[None]:
    """Insights that come all the time."""
    ended = threading.Event()

    def publish() -> None:
        while not ended.wait(0.2):
            rows = [
                {"insight_id": uuid.uuid4().hex, "channel_id": "flow", "ts": 1_700_000_000_000, "text": f"insight {n}"}
                for n in range(20)
            ]
            body = "".join(json.dumps(row) + "\n" for row in rows)
            product.http.post(f"/api/events/{INSIGHTS}", content=body, headers={"content-type": "application/x-ndjson"})

    thread = threading.Thread(target=publish)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.mark.parametrize("path", ["/", f"/browse?topic={INSIGHTS}"])
@pytest.mark.usefixtures("flow")
def test_eight_hours_add_nothing(browser: Any, path: str):
    """Updates of the overview and of a topic that is followed, again and again: memory, nodes and listeners level off.

    A script that keeps what it was sent is noticed by the same measure.
    """
    page = browser.page(path)
    opened = OpenPage(page)
    turns = opened.record(UPDATES) * ROUNDS
    opened.replay(ROUNDS)  # memory that is used once, as compiled code
    before, after = opened.replay(ROUNDS), opened.replay(ROUNDS)
    megabytes, nodes, listeners = growth(before, after, turns)
    assert (megabytes < MB_MAX, nodes < NODES_MAX, listeners < LISTENERS_MAX) == (True, True, True), (before, after)
    opened.plant_leak()
    measured = [after, *(opened.replay(ROUNDS) for _ in range(3))]
    # Three times, since memory that is freed late hides a part of one.
    assert max(growth(before, after, turns)[0] for before, after in pairwise(measured)) > MB_MAX
    page.context.close()
