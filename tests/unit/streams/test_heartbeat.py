"""The heartbeat of a worker: what counts as silence."""

from __future__ import annotations

from highwater.streams.heartbeat import BUSY_LIMITS, TICKS_UNDER_WAY_MAX, Heartbeats, Progress


def test_a_tick_not_heard_in_time_is_late() -> None:
    """A tick that one of two agents has not processed within the limit is named, by agent and partition."""
    beats = Heartbeats(("channels", "users"))
    beats.sent(3, 7, 100.0)
    beats.heard("users", 3, 7)
    assert beats.late(160.0, 60.0) == {}
    assert list(beats.late(160.1, 60.0)) == ["channels/3"]


def test_an_agent_that_works_through_a_backlog_is_not_silent() -> None:
    """Silence counts from the last event dealt with, since ticks wait behind events."""
    beats = Heartbeats(("users",))
    beats.sent(0, 1, 0.0)
    beats.moved("users", 100.0)
    assert beats.late(150.0, 60.0) == {}
    assert list(beats.late(161.0, 60.0)) == ["users/0"]


def test_a_stuck_partition_shows_though_others_flow() -> None:
    """A tick that takes ten limits is late, even if other partitions move."""
    beats = Heartbeats(("users",))
    beats.sent(0, 1, 0.0)
    beats.moved("users", BUSY_LIMITS * 60.0)
    assert beats.late(BUSY_LIMITS * 60.0, 60.0) == {}
    assert list(beats.late(BUSY_LIMITS * 60.0 + 1, 60.0)) == ["users/0"]


def test_hearing_a_tick_hears_all_before_it() -> None:
    """Ticks of a partition are dealt with in order, so a later one clears the earlier; so does an assignment."""
    beats = Heartbeats(("users",))
    for number in range(TICKS_UNDER_WAY_MAX):
        assert not beats.is_full(0)
        beats.sent(0, number, 0.0)
    assert beats.is_full(0)
    beats.heard("users", 0, TICKS_UNDER_WAY_MAX - 1)
    assert not beats.is_full(0)
    assert beats.late(1_000.0, 60.0) == {}
    beats.sent(0, 9, 0.0)
    beats.forget()
    assert beats.late(1_000.0, 60.0) == {}


def test_progress_counts_from_the_last_change() -> None:
    """An unchanged state ages; a change resets it."""
    progress = Progress(0.0)
    assert [progress.look("a", 5.0), progress.look("a", 9.0), progress.look("b", 12.0)] == [0.0, 4.0, 0.0]


def test_the_silence_of_a_broker_is_not_the_agents() -> None:
    """A tick sent before the broker fell silent is late only when the limit has passed since the broker answered again."""
    beats = Heartbeats(("users",))
    beats.sent(0, 1, 0.0)
    assert list(beats.late(100.0, 60.0)) == ["users/0"]
    assert beats.late(100.0, 60.0, answered_at=75.0) == {}
    assert beats.late(10_000.0, 60.0, answered_at=9_990.0) == {}
    assert list(beats.late(136.0, 60.0, answered_at=75.0)) == ["users/0"]


def test_what_could_not_move_is_not_called_stuck() -> None:
    """Progress counts from the broker's last silence, where that is later than the last change."""
    progress = Progress(0.0)
    progress.forgive(50.0)
    assert progress.look(None, 55.0) == 5.0
    progress.forgive(float("-inf"))
    assert progress.look(None, 60.0) == 10.0
