"""The sentence of `highwater users pending`: what must come before a rebuild."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from highwater.api.feeds.answers import Pending
from highwater.api.feeds.cli_users import delay_line, verdict

AT = "2026-11-26T12:00:00Z"
WAITS = {
    "subscription": "subscribed to no channel",
    "activity": "`POST /api/users/a%2Fb/activity` reports one",
    "time": f"No rebuild is due before {AT}",
    "answer": f"in progress; it has until {AT}",
    "vectors": "waits, for a minute at most",
}


@pytest.mark.parametrize(("waits_for", "said"), WAITS.items())
def test_a_user_is_not_due_for_one_reason(waits_for: str, said: str) -> None:
    """Each value of `waits_for` has a sentence, which names the time where there is one."""
    document: dict[str, Any] = {"user_id": "a/b", "due": False, "trigger": None, "waits_for": waits_for, "due_at": AT}
    assert said in verdict(document)


def test_a_due_rebuild_names_its_trigger() -> None:
    """A due rebuild is shown with its trigger, and every value that the API can answer has a sentence above."""
    assert "novelty" in verdict(
        {"user_id": "a/b", "due": True, "trigger": "novelty", "waits_for": None, "due_at": None}
    )
    values = get_args(get_args(get_type_hints(Pending)["waits_for"])[0])
    assert set(values) == set(WAITS)


def test_a_delay_names_its_reason() -> None:
    """With how often and when, and what follows without anybody."""
    line = delay_line({"reason": "the start made no progress for 30 s and was ended", "times": 2, "at": AT})
    assert line.startswith(
        "Rebuilds are delayed: the start made no progress for 30 s and was ended (2 times in a row, last"
    )
    assert AT in line
