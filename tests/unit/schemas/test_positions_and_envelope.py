"""Log positions and record headers: written and read back, and anything from outside has an outcome."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.envelope import caused_by, header, iso_from_ms, make_headers, ms_from_iso
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.positions import Position, highest_positions, parse_position

TOPIC = st.text("abcXYZ019._-", min_size=1, max_size=40)
POSITION = st.builds(Position, TOPIC, st.integers(0, 999_999), st.integers(0, 10**18 - 1))


@given(POSITION)
def test_a_position_reads_back(position: Position):
    """The text of a position names the same position."""
    assert position == parse_position(str(position))


@pytest.mark.parametrize("text", ["", "t", "t/1", "t/1/", "t/-1/2", "t/1/2/3", "t/a/1", "a b/1/2", "t/1/1.5", "t/1/²"])
def test_a_malformed_position_is_refused(text: str):
    """Any text that is not topic/partition/offset is an `InvalidEventError` with its reason."""
    with pytest.raises(InvalidEventError) as caught:
        parse_position(text)
    assert caught.value.reason == "malformed_position"


def test_the_highest_position_per_partition_counts():
    """The highest offset of each partition in a comma list is kept; spaces and empty parts do not matter."""
    assert highest_positions("t/0/3, t/0/9,,t/1/2 ,u/0/1,t/0/4") == {("t", 0): 9, ("t", 1): 2, ("u", 0): 1}


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_a_time_reads_back(ms: int):
    """Milliseconds from the year 1 to 9999 survive ISO 8601, which ends in Z."""
    text = iso_from_ms(ms)
    assert text.endswith("Z")
    assert ms == ms_from_iso(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01", 0),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:59:59.999Z", -1),
        ("2100-01-01T00:00:00Z", 4_102_444_800_000),
    ],
)
def test_times_are_utc(text: str, ms: int):
    """A time without an offset counts as UTC, one with an offset is moved to it."""
    assert ms == ms_from_iso(text)


def test_our_headers_are_cloudevents_with_the_cause():
    """The headers of our own events contain the required CloudEvents attributes, and the cause if there is one."""
    cause = Position("feeds.user-active", 3, 14)
    headers = make_headers(event_id="i", event_type="t", source="/s", now_ms=1_000, caused_by=cause)
    assert dict(headers) == {
        "ce_specversion": b"1.0",
        "content-type": b"application/avro",
        "ce_id": b"i",
        "ce_type": b"t",
        "ce_source": b"/s",
        "ce_time": b"1970-01-01T00:00:01Z",
        "ce_causedby": b"feeds.user-active/3/14",
    }
    assert cause == caused_by(headers)
    assert "ce_causedby" not in dict(make_headers(event_id="i", event_type="t", source="/s", now_ms=0, caused_by=None))


@pytest.mark.parametrize("source", ["highwater cli", "", "/ä", "/a<b>"])
def test_a_source_is_a_uri_reference(source: str):
    """Another one is a defect of the product, and a consumer of CloudEvents may refuse it."""
    with pytest.raises(ValueError, match="not a URI reference"):
        make_headers(event_id="i", event_type="t", source=source, now_ms=0, caused_by=None)


@pytest.mark.parametrize("value", [None, b"", b"\xff\xfe", b"nonsense", b"t/1/x"])
def test_a_cause_from_outside_may_be_anything(value: bytes | None):
    """A missing or malformed `ce_causedby` gives no cause and no error."""
    assert caused_by([("ce_causedby", value)]) is None


def test_the_last_header_of_a_name_counts():
    """Kafka allows a name twice; undecodable bytes are replaced."""
    assert header([("h", b"a"), ("h", b"b")], "h") == "b"
    assert header([("h", b"\xff")], "h") == "\ufffd"
    assert header(None, "h") is None
