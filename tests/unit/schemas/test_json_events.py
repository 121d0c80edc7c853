"""Events as JSON: what a client may write, and the field that is named when it may not."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from highwater.schemas.avro_files import examples
from highwater.schemas.codec import Codec
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.json_events import event_from_json, event_to_json
from highwater.schemas.topics import TOPICS

CODEC = Codec({name: number for number, name in enumerate(TOPICS, start=1)})
INSIGHT = {"insight_id": "i", "channel_id": "c", "ts": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("topic", sorted(name for name, topic in TOPICS.items() if topic.outsider))
def test_the_json_form_of_every_example_reads_back(topic: str):
    """The shown JSON can be sent as JSON, and is the same event."""
    for example in examples(TOPICS[topic].schema):
        read = event_from_json(topic, event_to_json(topic, example))
        assert example == CODEC.decode(topic, CODEC.encode(topic, read))


def test_an_embedding_is_an_array_or_base64():
    """Both spellings give the little-endian float32 bytes."""
    expected = struct.pack("<2f", 1.0, -2.5)
    for spelling in ([1, -2.5], base64.b64encode(expected).decode()):
        assert expected == event_from_json("feeds.insight-ingested", {**INSIGHT, "embedding": spelling})["embedding"]


def test_null_is_the_default_of_an_optional_field():
    """Also of one whose Avro type has no null: a text, a list, a flag."""
    document = {"user_id": "ada", "ts": 1, "kind": "undo", "cluster_id": None, "cluster_ids": None, "curation_id": "c"}
    event = event_from_json("feeds.clusters-curated", document)
    assert (event["cluster_id"], event["cluster_ids"], event["parts"]) == ("", [], [])


def test_optional_fields_may_be_left_out():
    """A field with a default may be missing or null."""
    event = event_from_json("feeds.insight-ingested", {**INSIGHT, "text": None})
    assert {name: event[name] for name in ("text", "url", "ts")} == {"text": None, "url": None, "ts": 1_767_225_600_000}


@pytest.mark.parametrize(
    ("change", "reason", "field"),
    [
        ({"extra": 1}, "unknown_field", "extra"),
        ({"insight_id": None}, "missing_field", "insight_id"),
        ({"insight_id": 7}, "wrong_type", "insight_id"),
        ({"insight_id": "\ud800"}, "invalid_utf8", "insight_id"),
        ({"ts": "yesterday"}, "not_a_time", "ts"),
        ({"ts": True}, "not_a_time", "ts"),
        ({"ts": 1.5}, "not_a_time", "ts"),
        ({"ts": {}}, "not_a_time", "ts"),
        ({"embedding": "not base64!"}, "wrong_type", "embedding"),
        ({"embedding": ["a"]}, "wrong_type", "embedding"),
        ({"embedding": 7}, "wrong_type", "embedding"),
        ({"embedding": {"0": 1}}, "wrong_type", "embedding"),
        ({"text": ["a"]}, "wrong_type", "text"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], reason: str, field: str):
    """Each wrong field is refused with a reason and its name."""
    with pytest.raises(InvalidEventError) as caught:
        event_from_json("feeds.insight-ingested", {**INSIGHT, **change})
    assert (reason, field) == (caught.value.reason, caught.value.field)


@pytest.mark.parametrize("document", [None, [], "text", 7, True])
def test_an_event_is_an_object(document: Any):
    """Other JSON is refused."""
    with pytest.raises(InvalidEventError) as caught:
        event_from_json("feeds.user-active", document)
    assert caught.value.reason == "not_an_object"


@pytest.mark.parametrize("channels", ["c", [1], [None], [["c"]], ["\ud800"]])
def test_channels_are_an_array_of_texts(channels: Any):
    """A set of subscriptions holds texts and nothing else."""
    document = {"user_id": "u", "ts": 1, "channels": channels}
    with pytest.raises(InvalidEventError) as caught:
        event_from_json("feeds.subscriptions-replaced", document)
    assert caught.value.field == "channels"


@pytest.mark.parametrize("ts", [2**63, -(2**63) - 1, 10**30])
def test_a_time_beyond_64_bits_is_refused_with_its_field(ts: int):
    """A number that no Avro long holds is refused at its place, not later by the encoder."""
    with pytest.raises(InvalidEventError) as caught:
        event_from_json("feeds.user-active", {"user_id": "u", "ts": ts})
    assert caught.value.field == "ts"


def test_a_time_beyond_the_calendar_is_shown_as_a_number():
    """A time that ISO 8601 cannot express is shown as a number."""
    assert event_to_json("feeds.user-active", {"user_id": "u", "ts": 2**62})["ts"] == 2**62


@pytest.mark.parametrize(
    ("part", "field", "reason"),
    [
        ({"insight_ids": ["i"], "name": "x"}, "parts.1.name", "unknown_field"),
        ({"label": "x"}, "parts.1.insight_ids", "missing_field"),
        ({"insight_ids": [1]}, "parts.1.insight_ids", "wrong_type"),
        ({"insight_ids": ["i"], "label": "\ud800"}, "parts.1.label", "invalid_utf8"),
        ("i", "parts", "wrong_type"),
    ],
)
def test_a_field_of_a_record_within_is_named_by_its_path(part: Any, field: str, reason: str):
    """As in the answers of the API: `parts.1.label`."""
    topic = "feeds.clusters-curated"
    document = event_to_json(topic, next(one for one in examples(TOPICS[topic].schema) if one["parts"]))
    with pytest.raises(InvalidEventError) as refused:
        event_from_json(topic, {**document, "parts": [{"insight_ids": ["i"]}, part]})
    assert (refused.value.field, refused.value.reason) == (field, reason)
