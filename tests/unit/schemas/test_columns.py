"""Events that are read at once equal those that are read one by one, for any bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.avro_files import examples
from highwater.schemas.codec import Codec
from highwater.schemas.errors import InvalidEventError, UnknownSchemaError
from highwater.schemas.topics import TOPICS

CODEC = Codec({name: number for number, name in enumerate(TOPICS, start=1)})
INGESTED = "feeds.insight-ingested"
FLAT = ("feeds.channel-advanced", INGESTED, "feeds.insight-retracted", "feeds.user-active")


def same_or_left(topic: str, values: list[bytes | None]) -> int:
    """Each value that is read at once is what it is alone; how many were."""
    found = CODEC.decode_many(topic, values)
    assert len(values) == len(found)
    for value, event in zip(values, found, strict=True):
        if event is not None:
            alone = CODEC.decode(topic, value)
            assert (list(alone.items()), list(map(type, alone.values()))) == (
                list(event.items()),
                list(map(type, event.values())),
            )
    return sum(event is not None for event in found)


@pytest.mark.parametrize("topic", sorted(TOPICS))
def test_every_example_is_read_at_once_or_left(topic: str):
    """The examples of every schema, three times over; flat ones are read, no others."""
    values: list[bytes | None] = [CODEC.encode(topic, one) for one in examples(TOPICS[topic].schema)] * 3
    found = same_or_left(topic, values)
    assert found in (0, len(values))
    if topic in FLAT:
        assert found == len(values)


@given(
    st.lists(
        st.tuples(
            st.text(max_size=20),
            st.integers(-(2**63), 2**63 - 1),
            st.none() | st.text(max_size=300),
            st.none() | st.binary(max_size=20),
        ),
        max_size=8,
    )
)
def test_any_values_survive(rows: list[tuple[str, int, str | None, bytes | None]]):
    """Any text, number and bytes; only a number of ten bytes is left to the other reader."""
    events = [
        {
            "insight_id": i,
            "channel_id": i * 2,
            "ts": ts,
            "text": text,
            "url": None,
            "embedding": data,
            "embedding_model": i,
        }
        for i, ts, text, data in rows
    ]
    values: list[bytes | None] = [CODEC.encode(INGESTED, event) for event in events]
    assert same_or_left(INGESTED, values) == sum(-(2**62) <= ts < 2**62 for _, ts, _, _ in rows)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_bytes_are_read_as_alone_or_left(seed: int):
    """Bytes changed, cut, added and swapped between neighbours: nothing is read that the reader of one would not read so."""
    draw = np.random.default_rng(seed)
    event: dict[str, Any] = {
        "insight_id": "i" * int(draw.integers(1, 90)),
        "channel_id": "apache/kafka",
        "ts": int(draw.integers(-(10**13), 10**13)),
        "text": (None, "text", "\u00e9" * 70)[draw.integers(3)],
        "url": (None, "u")[draw.integers(2)],
        "embedding": (None, b"\xff" * 16)[draw.integers(2)],
        "embedding_model": None,
    }
    values: list[bytes | None] = []
    for _ in range(60):
        data = bytearray(CODEC.encode(INGESTED, event))
        for _ in range(int(draw.integers(3))):
            at = int(draw.integers(len(data)))
            match int(draw.integers(4)):
                case 0:
                    data[at] = int(draw.integers(256))
                case 1:
                    del data[at:]
                    data = data or bytearray(b"\0")
                case 2:
                    data[at:at] = bytes([int(draw.integers(256))])
                case _:
                    data += b"\0"
        values.append(bytes(data))
    values[int(draw.integers(60))] = None
    for first in range(0, 60, 5):
        part = values[first : first + 5]
        left = [value for value, one in zip(part, CODEC.decode_many(INGESTED, part), strict=True) if one is None]
        for value in left:
            try:
                CODEC.decode(INGESTED, value)
            except (InvalidEventError, UnknownSchemaError):
                continue
        same_or_left(INGESTED, part)


def test_one_bad_event_leaves_its_neighbours():
    """Only the faulty value is refused; only text that is not UTF-8 refuses its whole batch."""
    good = CODEC.encode(INGESTED, {**examples(TOPICS[INGESTED].schema)[0], "embedding": None})
    ends = [b"", good[:-1], good + b"\0", good[:5] + b"\xff" * 12, None, b"\1" + good[1:]]
    assert CODEC.decode_many(INGESTED, [*ends, good[:4]]) == [None] * (len(ends) + 1)
    found = CODEC.decode_many(INGESTED, [good, *ends, good])
    assert [i for i, event in enumerate(found) if event is not None] == [0, len(ends) + 1]
    text = good.replace(good[6:8], b"\xff\xff", 1)
    assert CODEC.decode_many(INGESTED, [good, text]) == [None, None]
