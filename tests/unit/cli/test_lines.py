"""How a file of JSON lines is read: numbers, shifts, refusals."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator

import pytest

from highwater.api.command.lines import (
    Line,
    anchor_field,
    decompressed,
    event_of,
    iter_lines,
    key_of,
    latest_ms,
    time_fields,
)
from highwater.schemas.errors import InvalidEventError

TOPIC = "feeds.insight-ingested"
DIMENSIONS = 384


def insight(**more: object) -> bytes:
    """A line of the topic."""
    return json.dumps({"insight_id": "i", "channel_id": "c/d", "ts": 1000, "text": "t", **more}).encode()


def lines_of(*rows: bytes) -> Iterator[Line]:
    """The rows as lines."""
    return iter_lines(io.BytesIO(b"\n".join(rows)))


def test_a_record_of_replay_is_the_event_in_it():
    """A line that `highwater replay` wrote gives the event of the record, and its time counts as the file's last one."""
    event = json.loads(insight())
    record = {"topic": TOPIC, "partition": 9, "offset": 7, "timestamp": "2026-01-01T00:00:00Z", "key": "c/d"}
    line = Line(1, json.dumps({**record, "headers": {"ce_id": "1"}, "value": event}).encode())
    plain = event_of(TOPIC, Line(1, insight()), shift_ms=0, embedding_dimensions=DIMENSIONS)
    assert event_of(TOPIC, line, shift_ms=0, embedding_dimensions=DIMENSIONS) == plain
    assert latest_ms(TOPIC, lambda: iter([line]), embedding_dimensions=DIMENSIONS) == 1000
    undecodable = Line(1, json.dumps({**record, "headers": {}, "value": None, "undecodable": True}).encode())
    with pytest.raises(InvalidEventError, match="no field"):
        event_of(TOPIC, undecodable, shift_ms=0, embedding_dimensions=DIMENSIONS)


def test_blank_lines_keep_their_numbers():
    """A line's number is the one an editor shows: blank lines count and are left out."""
    assert list(iter_lines(io.BytesIO(b"a\n\n  \nb\r\nc"))) == [(1, b"a\n"), (4, b"b\r\n"), (5, b"c")]


def test_a_byte_order_mark_is_no_part_of_the_first_line():
    """A mark at the beginning of the file is dropped, elsewhere it stays."""
    assert [Line(1, b"a\n"), Line(2, b"\xef\xbb\xbfb")] == list(iter_lines(io.BytesIO(b"\xef\xbb\xbfa\n\xef\xbb\xbfb")))


def test_an_endless_line_is_one_bad_line():
    """A line longer than the limit is given without data, and the one after it with its own number."""
    found = list(iter_lines(io.BytesIO(b"x" * 35 + b"\nab\n"), bytes_max=10))
    assert [Line(1, None), Line(2, b"ab\n")] == found


def test_gzip_is_told_by_its_first_bytes():
    """The bytes decide whether a file is unpacked, not its name; a file shorter than the magic number is plain."""
    assert decompressed(io.BytesIO(gzip.compress(b"a\n"))).read() == b"a\n"
    assert decompressed(io.BytesIO(b"a")).read() == b"a"
    assert decompressed(io.BytesIO(b"")).read() == b""


def test_a_shift_moves_every_time_and_keeps_gaps():
    """Two events keep their distance when the file's last one is moved to a moment."""
    rows = (insight(ts="1970-01-01T00:00:01Z"), insight(ts=4000))
    shift = 1_000_000 - (latest_ms(TOPIC, lambda: lines_of(*rows), embedding_dimensions=DIMENSIONS) or 0)
    moved = [event_of(TOPIC, line, shift_ms=shift, embedding_dimensions=DIMENSIONS)["ts"] for line in lines_of(*rows)]
    assert moved == [997_000, 1_000_000]


@pytest.mark.parametrize(
    "bad", [b'{"ts": 99999999}', insight(ts=99999999, insight_id=""), insight(ts="9999-01-01T00:00:00Z", nonsense=1)]
)
def test_bad_lines_do_not_count_for_the_last_time(bad):
    """A line that will not be published does not move those that will, however late its time is."""
    assert latest_ms(TOPIC, lambda: lines_of(insight(ts=4000), bad), embedding_dimensions=DIMENSIONS) == 4000


@pytest.mark.parametrize("row", [b"not json", b"[1]", b'{"ts": "soon"}', b'{"ts": null}', b"17", b'{"ts": 1e400}'])
def test_a_file_without_a_time_has_no_last_one(row):
    """Where no line can be published there is nothing to move, and nothing fails."""
    assert latest_ms(TOPIC, lambda: lines_of(row), embedding_dimensions=DIMENSIONS) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (Line(1, None), "too_long"),
        (Line(1, b"{"), "not_json"),
        (Line(1, b"NaN"), "not_json"),
        (Line(1, b'"text"'), "not_an_object"),
        (Line(1, insight(colour="red")), "unknown_field"),
        (Line(1, insight(ts="yesterday")), "not_a_time"),
        (Line(1, insight(embedding=[1.0])), "bad_embedding"),
        (Line(1, b'{"insight_id": "\\ud800", "channel_id": "c", "ts": 1}'), "not_json"),
    ],
)
def test_a_bad_line_says_why(line, reason):
    """Any invalid line is refused with a reason, and no other error is raised."""
    with pytest.raises(InvalidEventError) as caught:
        event_of(TOPIC, line, shift_ms=0, embedding_dimensions=DIMENSIONS)
    assert reason == caught.value.reason


def test_a_shift_past_the_last_year_is_refused():
    """An event that a shift moves beyond the year 9999 is a bad line, not a crash of the encoder."""
    with pytest.raises(InvalidEventError, match="before the year 10000"):
        event_of(TOPIC, Line(1, insight()), shift_ms=10**15, embedding_dimensions=DIMENSIONS)


def test_the_time_fields_come_from_the_schema():
    """Optional times count too; the end of a file is taken from `ts` if it exists."""
    assert time_fields("feeds.user-changed") == ("last_active_at",)
    assert anchor_field(TOPIC) == "ts"
    assert anchor_field("feeds.novelty") is None


def test_a_key_is_a_text_that_is_not_empty():
    """An event without a key would be put into a random partition, so it is refused."""
    assert key_of({"channel_id": "c"}, "channel_id") == "c"
    for value in ("", None, 3):
        with pytest.raises(InvalidEventError):
            key_of({"channel_id": value}, "channel_id")
