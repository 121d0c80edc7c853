"""Which records are kept and counted."""

from __future__ import annotations

import io
import json

import pytest

from highwater.connectors.replay.counts import Counts
from highwater.connectors.replay.running import Chooser, first_answered, write_batches
from highwater.connectors.replay.where_error import WhereError
from highwater.connectors.replay.writers import JsonLines
from tests.unit.replay.making import TOPIC, batch, decoder_of, encoded, insight, own_text

VALUES = [encoded(insight(text=text), own_text()) for text in ("a", "b", "a")]
BATCH = batch([*VALUES, None, b"garbage"], keys=[b"k", b"k", b"other", b"k", b"\xff"])


def chosen(key: bytes | None, condition: str | None) -> tuple[list[int], list[int], int]:
    """The offsets that are kept, decoded and not, and how many records count as read."""
    decoder, counts = decoder_of(), Counts()
    chooser = Chooser(TOPIC, decoder, counts, key=key, condition=condition)
    decoded, undecoded = chooser.decoded(BATCH), chooser.undecoded(BATCH)
    assert decoded.batch.values == undecoded.values
    return decoded.batch.offsets.tolist(), undecoded.offsets.tolist(), counts.read


@pytest.mark.parametrize(
    ("key", "condition", "offsets"),
    [
        (None, None, [100, 101, 102, 103, 104]),
        (b"k", None, [100, 101, 103]),
        (b"\xff", None, [104]),
        (b"", None, []),
        (b"nobody", None, []),
        (None, "value.text == 'a'", [100, 102]),
        (b"k", "value.text == 'a'", [100]),
        (b"k", "value == null", [103]),
    ],
)
def test_a_key_and_a_condition_both_hold(key: bytes | None, condition: str | None, offsets: list[int]):
    """A record is kept when its key is that one, byte by byte, and the condition is met; all count as read."""
    assert chosen(key, condition) == (offsets, offsets, 10)


def test_records_without_a_key_are_of_no_key():
    """An empty key is a key; none is not."""
    chooser = Chooser(TOPIC, decoder_of(), Counts(), key=b"")
    assert chooser.undecoded(batch([None, None], keys=[None, b""])).offsets.tolist() == [101]


def test_what_is_written_is_counted():
    """Read, written and undecodable records are counted separately; progress reports the read ones."""
    file, decoder, counts, told = io.BytesIO(), decoder_of(), Counts(), []
    chooser = Chooser(TOPIC, decoder, counts, key=b"k")
    batches = [BATCH, batch([b"garbage"]), batch([None], keys=[b"x"])]
    write_batches(map(chooser.decoded, batches), JsonLines(file, decoder), counts, told.append)
    assert (counts.read, counts.written, counts.undecodable) == (7, 4, 1)
    assert told == [5, 6, 7]
    assert [json.loads(line)["offset"] for line in file.getvalue().splitlines()] == [100, 101, 103, 100]


def test_a_file_begins_where_the_condition_has_its_first_answer():
    """However the records before it are divided into batches; the batches left out contain nothing that it keeps."""
    decoder, counts = decoder_of(), Counts()
    chooser = Chooser(TOPIC, decoder, counts, condition="value.text == 'a'")
    batches = [batch([None]), batch([None, None]), BATCH, batch([VALUES[0]])]
    (first,) = first_answered(map(chooser.decoded, batches), chooser, counts)
    assert (first.batch.offsets.tolist(), counts.read) == ([100, 102], 8)
    assert (
        first_answered(
            map(chooser.decoded, [batch([None])]), Chooser(TOPIC, decoder, counts, condition="key == 'k'"), counts
        )
        == []
    )


def test_what_is_no_condition_is_found_at_its_first_answer():
    """Records for which it has none do not hide it."""
    decoder, counts = decoder_of(), Counts()
    chooser = Chooser(TOPIC, decoder, counts, condition="headers.ce_type")
    batches = [batch([VALUES[0]]), batch([VALUES[1]]), BATCH]
    headed = batch([VALUES[0]], headers=[[("ce_type", b"x")]])
    with pytest.raises(WhereError, match="not true or false"):
        first_answered(map(chooser.decoded, [*batches, headed]), chooser, counts)
