"""Packing of subscribers: everybody once, at the right partition, within the bound."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.streams.feeds.packing import RECORD_BYTES_MAX, pack_users


def place(user_id: str) -> int:
    """The partition of a user, of four."""
    return murmur2_partition(user_id.encode(), 4)


@given(st.lists(st.text(min_size=1, max_size=40), unique=True, max_size=80), st.integers(1, 300))
def test_everybody_is_told_once_in_order(users: list[str], bytes_max: int):
    """The records of a partition hold exactly its users, in the order given."""
    told: dict[int, list[str]] = defaultdict(list)
    for partition, members in pack_users(users, partition_of=place, bytes_max=bytes_max):
        assert members
        told[partition] += members
    assert {p: [u for u in users if place(u) == p] for p in {place(u) for u in users}} == told


@given(st.lists(st.text(min_size=1, max_size=40), max_size=80), st.integers(1, 300))
def test_a_record_is_bounded_unless_one_user_is_larger(users: list[str], bytes_max: int):
    """No record with more than one user holds more bytes of ids than the bound."""
    for _, members in pack_users(users, partition_of=place, bytes_max=bytes_max):
        assert len(members) == 1 or sum(len(member.encode()) for member in members) <= bytes_max


def test_ten_thousand_long_ids_take_few_full_records():
    """The bound is used: records are as few as it allows, all but the last of each partition more than half full."""
    users = [f"{number:0>500}" for number in range(10_000)]
    records = list(pack_users(users, partition_of=place))
    last = {partition: index for index, (partition, _) in enumerate(records)}
    full = [sum(map(len, members)) for i, (p, members) in enumerate(records) if i != last[p]]
    assert sum(len(members) for _, members in records) == 10_000
    assert min(full) > RECORD_BYTES_MAX / 2
    assert max(full) <= RECORD_BYTES_MAX


def test_nobody_is_no_record():
    """A channel without subscribers packs to nothing."""
    assert list(pack_users([], partition_of=place)) == []
