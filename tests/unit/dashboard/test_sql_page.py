"""The SQL page: which answers are the drawing of a plan."""

from __future__ import annotations

import pytest

from highwater.api.dashboard.pages.sql import is_explained


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("EXPLAIN SELECT 1", True),
        ("-- why so slow?\n explain SELECT 1", True),
        ("/* EXPLAIN\n */ -- and this\n\nEXPLAIN\nSELECT 1", True),
        ("-- EXPLAIN SELECT 1", False),
        ("/* EXPLAIN */ SELECT 1", False),
        ("SELECT 'EXPLAIN'", False),
        ("EXPLAINED", False),
        ("/* a */ -- b\n" * 5_000, False),
    ],
)
def test_a_plan_is_known_behind_comments(query: str, expected: bool) -> None:
    """A word in a comment or a text is not a keyword; a query of comments alone is not explained."""
    assert is_explained(query) is expected
