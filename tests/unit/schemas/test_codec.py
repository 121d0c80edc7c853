"""The codec: it reads what it writes, and answers any bytes with a named error."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.avro_files import examples, schema_text
from highwater.schemas.codec import Codec
from highwater.schemas.errors import InvalidEventError, UnknownSchemaError
from highwater.schemas.topics import TOPICS

CODEC = Codec({name: number for number, name in enumerate(TOPICS, start=1)})
IDS = {name: number for number, name in enumerate(TOPICS, start=1)}
ACTIVE = "feeds.user-active"


def reason(topic: str, value: bytes | None) -> str:
    """The reason with which a value is refused."""
    with pytest.raises(InvalidEventError) as caught:
        CODEC.decode(topic, value)
    return caught.value.reason


@pytest.mark.parametrize("topic", sorted(TOPICS))
def test_every_example_survives_the_wire(topic: str):
    """Each example beside a schema is encoded and decoded to itself."""
    for example in examples(TOPICS[topic].schema):
        assert example == CODEC.decode(topic, CODEC.encode(topic, example))


def test_the_wire_format_is_confluents():
    """A value is byte 0, the schema id as four bytes, most significant first, then the Avro body and nothing else."""
    assert bytes([0, 0, 0, 0, IDS[ACTIVE]]) + b"\x06ada\x02" == CODEC.encode(ACTIVE, {"user_id": "ada", "ts": -1 + 2})


@given(st.text(max_size=40), st.integers(-(2**63), 2**63 - 1))
def test_any_text_and_time_survive(user_id: str, ts: int):
    """Any Unicode text and any 64-bit time is returned unchanged."""
    event = {"user_id": user_id, "ts": ts}
    assert event == CODEC.decode(ACTIVE, CODEC.encode(ACTIVE, event))


@given(st.binary(max_size=60))
def test_any_bytes_have_an_outcome(body: bytes):
    """Bytes behind a known id are an event or an `InvalidEventError`, never another exception."""
    for topic in ("feeds.insight-ingested", "feeds.subscriptions-replaced", "feeds.rebuild-finished"):
        value = struct.pack(">bI", 0, IDS[topic]) + body
        try:
            event = CODEC.decode(topic, value)
        except InvalidEventError as error:
            found: object = error.reason
            expected: object = "not_avro"
        else:
            found, expected = set(event), set(CODEC.field_names(topic))
        assert expected == found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "empty_value"),
        (b"", "not_wire_format"),
        (b"\x00\x00\x00", "not_wire_format"),
        (b'{"user_id": "ada"}', "not_wire_format"),
        (b"\x01\x00\x00\x00\x01\x06ada\x02", "not_wire_format"),
        (bytes([0, 0, 0, 0, IDS[ACTIVE]]), "not_avro"),
        (bytes([0, 0, 0, 0, IDS[ACTIVE]]) + b"\x06ada\x02more", "not_avro"),
        (bytes([0, 0, 0, 0, IDS[ACTIVE]]) + b"\x06\xff\xfe\xfd\x02", "not_avro"),
        (bytes([0, 0, 0, 0, IDS[ACTIVE]]) + b"\x05ada\x02", "not_avro"),
        (bytes([0, 0, 0, 0, IDS[ACTIVE]]) + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01ada\x02", "not_avro"),
    ],
    ids=["tombstone", "empty", "short", "json", "magic", "no body", "left over", "bad utf-8", "negative", "huge"],
)
def test_bytes_that_are_no_event_are_refused_by_name(value: bytes | None, expected: str):
    """Each kind of broken value has its reason."""
    assert expected == reason(ACTIVE, value)


def test_an_unknown_id_is_an_error_of_its_own():
    """An id that the codec does not know is reported with the id, so that the registry can be queried."""
    with pytest.raises(UnknownSchemaError) as caught:
        CODEC.decode(ACTIVE, b"\x00\x7f\xff\xff\xff\x06ada\x02")
    assert caught.value.schema_id == 0x7FFFFFFF


SAME_SHAPE = ("feeds.user-active", "feeds.rebuild-demanded", "feeds.user-erased")


@pytest.mark.parametrize("sent_to", SAME_SHAPE)
@pytest.mark.parametrize("written_as", SAME_SHAPE)
def test_a_schema_of_another_event_is_refused(written_as: str, sent_to: str):
    """An event under another event's schema is refused even if the fields are the same: an activity event cannot erase a user."""
    value = CODEC.encode(written_as, {"user_id": "ada", "ts": 1})
    if written_as == sent_to:
        assert CODEC.decode(sent_to, value).items() >= {"user_id": "ada", "ts": 1}.items()
    else:
        assert reason(sent_to, value) == "not_avro"


def test_a_schema_of_another_subsystem_is_refused():
    """A tick is not an insight."""
    assert reason("feeds.insight-ingested", CODEC.encode("streams.tick", {"number": 1, "now": 1})) == "not_avro"


def taught(text: str) -> Codec:
    """A codec that knows one more schema, under id 900."""
    codec = Codec(IDS)
    codec.teach(900, text)
    return codec


def test_a_later_schema_with_a_new_optional_field_is_read():
    """A producer that is ahead by a compatible version is understood; its new field is left out."""
    later = schema_text("feeds/UserActive.v1").replace(
        '"fields": [', '"fields": [{"name": "device", "type": ["null", "string"], "default": null},', 1
    )
    codec = taught(later)
    value = struct.pack(">bI", 0, 900) + b"\x02\x06web" + b"\x06ada\x02"
    assert codec.decode(ACTIVE, value) == {"user_id": "ada", "ts": 1}


def test_an_earlier_schema_without_an_optional_field_is_read():
    """A producer that is behind is understood; the field it does not know has its default."""
    earlier = """{"type": "record", "name": "InsightIngested", "namespace": "highwater.feeds", "fields": [
      {"name": "insight_id", "type": "string"}, {"name": "channel_id", "type": "string"}, {"name": "ts", "type": "long"}]}"""
    event = taught(earlier).decode("feeds.insight-ingested", struct.pack(">bI", 0, 900) + b"\x02i\x02c\x02")
    nothing = dict.fromkeys(("text", "url", "embedding", "embedding_model"))
    assert {"insight_id": "i", "channel_id": "c", "ts": 1, **nothing} == event


def test_a_schema_that_is_no_record_is_refused():
    """An id that stands for a plain string is not an event."""
    with pytest.raises(InvalidEventError) as caught:
        taught('"string"').decode(ACTIVE, struct.pack(">bI", 0, 900) + b"\x06ada")
    assert caught.value.reason == "not_avro"


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"user_id": "ada"},
        {"user_id": None, "ts": 1},
        {"user_id": "ada", "ts": "now"},
        {"user_id": "ada", "ts": 2**63},
        {"user_id": "\ud800", "ts": 1},
        {"user_id": 7, "ts": 1},
    ],
)
def test_what_is_not_of_the_schema_is_not_written(event: dict[str, Any]):
    """A missing field, a wrong type or a number out of range is an `InvalidEventError`, and nothing is written."""
    with pytest.raises(InvalidEventError) as caught:
        CODEC.encode(ACTIVE, event)
    assert caught.value.reason == "not_of_schema"
