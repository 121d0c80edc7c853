"""The announced effect of a reset before it is executed."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.api.dashboard import consequences
from highwater.api.dashboard.resets import changed, moved, plan_html


def step(before: int | None, after: int, partition: int = 0) -> dict[str, Any]:
    """A partition of a plan."""
    return {"topic": "orders", "partition": partition, "before": before, "after": after}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [(2, 0, "2 events read again"), (0, 1_500, "1,500 events skipped"), (None, 7, "begins here")],
)
def test_a_step_in_words(before: int | None, after: int, said: str) -> None:
    """Events that are read again, events that are skipped, and a partition that was never read."""
    assert moved(step(before, after)) == said


def test_only_what_changes_is_listed() -> None:
    """The other partitions are counted."""
    plan = {"partitions": [step(2, 0), step(5, 5, 1), step(6, 6, 2)], "live_members": 0}
    assert changed(plan) == [step(2, 0)]
    shown = plan_html(plan)
    assert shown.count("<tr>") == 2  # its head, and one line
    assert "2 partitions would not change" in shown
    assert 'role="alert"' not in shown


def test_a_plan_that_changes_nothing_says_so() -> None:
    """Neither where the group already is there, nor where it reads nothing."""
    assert "Nothing would change" in plan_html({"partitions": [step(5, 5)], "live_members": 1})
    assert "reads nothing" in plan_html({"partitions": [], "live_members": 0})


def test_a_running_group_is_warned_of() -> None:
    """Above the plan, with the number of its members."""
    shown = plan_html({"partitions": [step(2, 0)], "live_members": 1})
    assert "running with 1 member," in shown
    assert shown.index('role="alert"') < shown.index("<table")


def test_the_confirmation_counts_events() -> None:
    """Those that are read again and those that are skipped; a partition that was never read counts as neither."""
    found = consequences.reset_group("orders", [step(2, 0), step(0, 9, 1), step(None, 100, 2)])
    assert found.happens[0] == "orders continues from another offset in 3 partitions."
    assert "reads 2 events again" in found.happens[1]
    assert found.happens[2] == "It skips 9 events."
