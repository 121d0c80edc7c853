"""How wrong a clock is, by what the server said while we asked."""

from __future__ import annotations

import pytest

from highwater.connectors.engines.lease_clock import ERROR_MS_MAX, clock_error_ms

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "server_ms", "error_ms"),
    [
        (100, 120, 110, 0),
        (100, 120, 120 + ERROR_MS_MAX, 0),
        (100 + ERROR_MS_MAX, 120 + ERROR_MS_MAX, 100, 0),
        (100 + HOUR, 120 + HOUR, 100, HOUR),
        (100, 120, 120 + HOUR, -HOUR),
        (100, 100 + HOUR, 200, 0),  # stopped for an hour while it asked
    ],
)
def test_the_error_of_a_clock(before_ms: int, after_ms: int, server_ms: int, error_ms: int):
    """It is at least this large, and zero within the bound."""
    assert clock_error_ms(before_ms, after_ms, server_ms) == error_ms
