"""Waits before another attempt."""

from __future__ import annotations

import pytest

from highwater.streams.retry import unavailable_seconds


@pytest.mark.requirement("R1.31")
def test_waits_for_an_unavailable_service_double_up_to_five_seconds():
    """From 0.2 seconds, without a last attempt."""
    assert [unavailable_seconds(attempt) for attempt in (1, 2, 3, 4, 5, 6, 1_000)] == [
        0.2,
        0.4,
        0.8,
        1.6,
        3.2,
        5.0,
        5.0,
    ]
