"""How long a consumer lingers follows from how fast records came to it lately."""

from __future__ import annotations

import pytest

from highwater.connectors.kafka.linger import Linger

SECONDS = 0.05
AT_ONCE = 0.0


def after(per_second: float, *, seconds: float = 1.0, batch: int = 1) -> tuple[Linger, float]:
    """One to whom records have come at a steady rate in batches, and the time of the last."""
    linger, now = Linger(SECONDS), 0.0
    for number in range(1, int(per_second * seconds / batch) + 1):
        now = number * batch / per_second
        linger.note(batch, now)
    return linger, now


def test_the_first_record_does_not_wait() -> None:
    """Nothing has come before it."""
    assert Linger(SECONDS).wait_seconds(1, 0.0) == AT_ONCE


@pytest.mark.parametrize("batch", [1, 10])
@pytest.mark.parametrize(("per_second", "seconds"), [(50, AT_ONCE), (400, SECONDS), (20_000, SECONDS)])
def test_it_waits_where_five_are_to_be_expected(per_second: float, seconds: float, batch: int) -> None:
    """50 a second are 2.5 within the wait, 400 are 20."""
    linger, now = after(per_second, batch=batch)
    assert linger.wait_seconds(1, now) == seconds


def test_who_comes_alone_after_a_spell_does_not_wait() -> None:
    """The rate is forgotten within a few of its quarters of a second."""
    linger, now = after(400)
    assert linger.wait_seconds(1, now + 0.1) == SECONDS
    assert linger.wait_seconds(1, now + 1.0) == AT_ONCE


def test_who_has_many_at_hand_waits_no_longer() -> None:
    """A batch of 64 spreads what a transaction costs; and one that is behind must not drain one partition meanwhile."""
    linger, now = after(20_000)
    assert (linger.wait_seconds(63, now), linger.wait_seconds(64, now)) == (SECONDS, AT_ONCE)
