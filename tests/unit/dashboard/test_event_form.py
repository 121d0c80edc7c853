"""The form of an event, and the JSON that its values make."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.api.dashboard.event_form import document_of, form_of
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.json_events import event_from_json
from highwater.schemas.topics import TOPICS

INSIGHTS = "feeds.insight-ingested"
OUTSIDE = sorted(topic.name for topic in TOPICS.values() if topic.outsider)
FILLED = {
    "text": "words",
    "time": "2026-11-20T12:00:00Z",
    "integer": "7",
    "number": "0.5",
    "yes or no": True,
    "lines": "one\ntwo",
    "bytes": "AAAAPw==",
}


@pytest.mark.parametrize("topic", OUTSIDE)
def test_a_filled_form_is_an_event_of_its_topic(topic: str) -> None:
    """The event of the form passes the function by which the API and the command check every event."""
    fields = form_of(topic)
    values = {one.name: FILLED[one.widget] for one in fields if one.widget != "JSON"}
    json_fields = [one.name for one in fields if one.widget == "JSON" and not one.is_optional]
    for name in json_fields:
        values[name] = "[]" if next(one for one in fields if one.name == name).kind.startswith("array") else "{}"
    assert event_from_json(topic, document_of(fields, values)).keys() == {one.name for one in fields}


def test_what_is_empty_is_left_out() -> None:
    """So that the API says which field is missing, and gives an optional one its default."""
    fields = form_of(INSIGHTS)
    assert document_of(fields, {"insight_id": "a", "channel_id": " ", "text": "", "url": None}) == {"insight_id": "a"}


def test_required_fields_come_first() -> None:
    """With what the schema says of them."""
    fields = form_of(INSIGHTS)
    assert [one.name for one in fields if not one.is_optional] == ["insight_id", "channel_id", "ts"]
    assert [one.is_optional for one in fields] == sorted(one.is_optional for one in fields)
    assert fields[0].about == "Identity over all channels; a known id changes nothing."


@pytest.mark.parametrize(
    ("topic", "name", "words", "value"),
    [
        (INSIGHTS, "ts", "1700000000000", 1_700_000_000_000),
        (INSIGHTS, "ts", " 2026-11-20T12:00:00Z ", "2026-11-20T12:00:00Z"),
        ("league.match-finalized", "home_goals", "3", 3),
        ("league.match-finalized", "home_goals", "three", "three"),
        ("feeds.subscriptions-replaced", "channels", "kafka\n\n redis \n", ["kafka", "redis"]),
        (INSIGHTS, "text", " as it is ", " as it is "),
        (INSIGHTS, "embedding", "[0.5, 1]", [0.5, 1]),
        (INSIGHTS, "embedding", "AAAAPw==", "AAAAPw=="),
    ],
)
def test_values_as_json(topic: str, name: str, words: str, value: Any) -> None:
    """Numbers and lists are parsed; an invalid number stays text, so that the API refuses it with its own message."""
    assert document_of(form_of(topic), {name: words})[name] == value


def test_text_that_is_no_json_names_its_field() -> None:
    """A field whose values have no widget of their own is JSON."""
    with pytest.raises(InvalidEventError, match="embedding is not JSON") as refused:
        document_of(form_of(INSIGHTS), {"embedding": "[0.5"})
    assert refused.value.field == "embedding"
