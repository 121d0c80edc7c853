"""Which writes are refused while too much waits."""

from __future__ import annotations

import pytest

from highwater.schemas.topics import TOPICS
from highwater.streams.overload import NEVER_SHED, Bounds, Load, Reason, judge

BOUNDS = Bounds(outbox_rows=100, outbox_age_seconds=60, lag_events=1_000)
TOPIC, SINK = "feeds.insight-ingested", "insights"


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (Load(), None),
        (Load(100, 60.0, {SINK: 1_000}), None),
        (Load(101, 0.0), Reason.OUTBOX_ROWS),
        (Load(1, 60.1), Reason.OUTBOX_AGE),
        (Load(0, 0.0, {SINK: 1_001}), Reason.LAG),
        (Load(0, 0.0, {"posts": 1_000_000}), None),
    ],
)
def test_a_write_waits_once_a_bound_is_passed(load: Load, reason: Reason | None):
    """At the bound not yet; the lag of its own sink counts, not that of others."""
    shed = judge(load, BOUNDS, TOPIC, SINK)
    assert (None if shed is None else shed.reason) == reason


@pytest.mark.parametrize("topic", sorted(NEVER_SHED))
def test_what_takes_back_is_never_refused(topic: str):
    """Each is a topic that callers write."""
    assert TOPICS[topic].outsider
    assert (
        judge(Load(10**9, 10**9, {TOPICS[topic].consumers[0]: 10**9}), BOUNDS, topic, TOPICS[topic].consumers[0])
        is None
    )
