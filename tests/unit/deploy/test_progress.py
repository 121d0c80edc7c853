"""The output during the wait for a service: seldom, with its reason, and once when it is late."""

from __future__ import annotations

from highwater.deploy.local.progress import FIRST_SECONDS, INTERVAL_SECONDS_MAX, Wait


def said(late_seconds: float | None, upto: int) -> dict[int, str]:
    """The output of a wait of this many seconds, by second."""
    wait = Wait("kafka", 1_000.0, late_seconds)
    found = {second: wait.lines(1_000.0 + second, "no metadata") for second in range(upto)}
    return {second: line for second, lines in found.items() for line in lines}


def test_a_wait_is_told_at_intervals_that_double():
    """Nothing in the first seconds, then with the reason, less and less often."""
    told = said(None, 300)
    assert list(told) == [10, 30, 70, 130, 190, 250]
    assert told[10] == "waiting for kafka (10 s): no metadata"
    assert list(said(None, int(FIRST_SECONDS))) == []
    assert max(b - a for a, b in zip(list(told), list(told)[1:], strict=False)) == INTERVAL_SECONDS_MAX


def test_late_is_told_once_and_ends_nothing():
    """At its time, with the operator's action; then the wait continues as before."""
    told = said(45.0, 200)
    late = [second for second, line in told.items() if "is late" in line]
    assert late == [45]
    assert "`highwater down` stops everything" in told[45]
    assert [second for second in told if second > 45] == [85, 145]
