"""Dead letters and the place of a key."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.connectors.kafka.records import DeadLetter, Record, dead_letter_row
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.topics import MESSAGE_BYTES_MAX

RECORD = Record("feeds.user-active", 3, 14, 1, b"k\xff", b"v\x00", [("a", b"1"), ("ce_id", b"x"), ("n", None)])  # type: ignore[list-item]


def letter(record: Record, detail: str = "why") -> DeadLetter:
    """A dead letter of a record."""
    return DeadLetter(record, "because", detail)


@given(st.binary(max_size=30), st.integers(1, 64))
def test_a_keys_partition_is_that_of_the_other_clients(key: bytes, partitions: int):
    """aiokafka, which computes it as Java does, chooses the same partition."""
    assert DefaultPartitioner()(key, list(range(partitions)), list(range(partitions))) == murmur2_partition(
        key, partitions
    )


@pytest.mark.parametrize(
    ("key", "hashed"), [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)]
)
def test_murmur2_is_kafkas(key: bytes, hashed: int):
    """The values of Kafka's own UtilsTest.testMurmur2."""
    assert (hashed & 0x7FFFFFFF) % 1_000_003 == murmur2_partition(key, 1_000_003)


def test_a_dead_letter_is_the_record_and_why():
    """Key, value and headers stay; reason, detail, origin, group and time are added, and what CloudEvents asks for beside."""
    row = dead_letter_row(letter(RECORD), group="users", now_ms=0)
    assert (row.topic, row.key, row.value, row.partition) == ("feeds.user-active.dlq", b"k\xff", b"v\x00", None)
    assert row.headers == [
        ("a", b"1"),
        ("ce_id", b"x"),
        ("n", b""),
        ("ce_specversion", b"1.0"),
        ("content-type", b"application/octet-stream"),
        ("ce_type", b"feeds.user-active.dlq"),
        ("ce_source", b"/dead-letters/users"),
        ("ce_time", iso_from_ms(RECORD.arrived_ms).encode()),
        ("dlq_added", b"ce_specversion,content-type,ce_type,ce_source,ce_time"),
        ("dlq_reason", b"because"),
        ("dlq_detail", b"why"),
        ("dlq_origin", b"feeds.user-active/3/14"),
        ("dlq_group", b"users"),
        ("dlq_time", b"1970-01-01T00:00:00Z"),
    ]


def test_a_detail_fits_a_screen():
    """A decoder's message may quote a whole event; the kept part is bounded, with any characters."""
    headers = dict(dead_letter_row(letter(RECORD, "\ud800" * 10_000), group="users", now_ms=0).headers)
    assert headers["dlq_detail"] == b"?" * 500


def test_what_no_topic_takes_stays_where_it_is():
    """A record that was sent compressed may be larger than any record we may send: its dead letter points at it."""
    huge = Record("t", 1, 2, 3, b"k", b"x" * (MESSAGE_BYTES_MAX + 1), [])
    row = dead_letter_row(letter(huge), group="g", now_ms=0)
    assert (row.key, row.value) == (b"k", None)
    assert str(MESSAGE_BYTES_MAX + 2).encode() == dict(row.headers)["dlq_omitted_bytes"]
    assert dict(row.headers)["dlq_origin"] == b"t/1/2"
    assert dict(row.headers)["ce_id"] == b"t/1/2"
