"""Dirty channels and the share of a tick."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.feeds.dirty import Channel, advance, clear, decode_channel, encode_channel, tick_quota


@pytest.mark.requirement("R0.29")
@given(cap=st.integers(1, 2_000), partitions=st.integers(1, 32), tick=st.integers(0, 10**10))
def test_the_shares_of_a_tick_sum_to_the_cap(cap: int, partitions: int, tick: int) -> None:
    """The cap is exact over all partitions, and no share differs from another by more than one (R0.29)."""
    shares = [tick_quota(cap, partitions, partition, tick) for partition in range(partitions)]
    assert sum(shares) == cap
    assert max(shares) - min(shares) <= 1


@given(cap=st.integers(1, 20), start=st.integers(0, 10**9))
def test_every_partition_is_served_in_turn(cap: int, start: int) -> None:
    """Within eight ticks each of eight partitions gets exactly the cap, also when it is 1."""
    for partition in range(8):
        assert sum(tick_quota(cap, 8, partition, start + step) for step in range(8)) == cap


advances = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 1_000)), max_size=20)


@given(advances)
def test_a_head_is_the_highest_ever_told(events: list[tuple[int, int]]) -> None:
    """In any order, the head is the maximum, and a repetition of everything changes nothing."""
    channel = Channel()
    for head, arrived_at in events + events:
        advance(channel, head, arrived_at)
    assert channel.head == max((head for head, _ in events), default=0)
    assert (channel.dirty_since is not None) == bool(events)


def test_only_a_higher_head_makes_dirty_and_the_oldest_time_counts() -> None:
    """A redelivered advance does not make a published channel dirty; of several advances the first arrival decides the order."""
    channel = Channel()
    advance(channel, 5, 100)
    advance(channel, 6, 90)
    advance(channel, 7, 200)
    assert channel == Channel(7, 90)
    clear(channel, 7)
    advance(channel, 7, 300)
    assert channel == Channel(7, None)


def test_a_retraction_makes_dirty_once() -> None:
    """Readers of the channel are notified although its head is unchanged; the same count again notifies no one."""
    channel = Channel(7, None)
    advance(channel, 7, 300, 1)
    assert channel == Channel(7, 300, 1)
    clear(channel, 7)
    advance(channel, 7, 400, 1)
    advance(channel, 6, 400, 0)
    assert channel == Channel(7, None, 1)


@pytest.mark.requirement("R0.30")
def test_an_advance_between_telling_and_clearing_keeps_the_channel_dirty() -> None:
    """What was published is cleared, not what arrived since (R0.30)."""
    channel = Channel()
    advance(channel, 5, 100)
    advance(channel, 6, 200)
    clear(channel, 5)
    assert channel.dirty_since == 100


@given(st.builds(Channel, st.integers(0, 2**53), st.none() | st.integers(0, 2**53), st.integers(0, 2**53)))
def test_a_row_is_read_as_it_was_written(channel: Channel) -> None:
    """Encoding loses nothing, and a missing row is a channel without events."""
    assert decode_channel(encode_channel(channel)) == channel
    assert decode_channel(None) == Channel()
    assert decode_channel(b"[4,null]") == Channel(4)
