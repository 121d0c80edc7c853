"""The rules for an event beyond its schema: every bad value has a reason and a field, every unusual but good one passes."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.errors import InvalidEventError
from highwater.streams.checks import ID_BYTES_MAX, TS_MS_MAX, TS_MS_MIN
from highwater.streams.clock import to_datetime, to_ms
from highwater.streams.feeds.validation import CHANNELS_MAX, TEXT_BYTES_MAX, URL_BYTES_MAX, are_plain_insights
from highwater.streams.validation import check_event

DIMENSIONS = 4
INGESTED = "feeds.insight-ingested"
INSIGHT: dict[str, Any] = {
    "insight_id": "i", "channel_id": "c", "ts": 0, "text": None, "url": None, "embedding": None, "embedding_model": None,
}  # fmt: skip


def vector(*numbers: float) -> bytes:
    """Little-endian float32."""
    return struct.pack(f"<{len(numbers)}f", *numbers)


def refused(topic: str, event: dict[str, Any]) -> tuple[str, str | None]:
    """Reason and field with which an event is refused."""
    with pytest.raises(InvalidEventError) as caught:
        check_event(topic, event, embedding_dimensions=DIMENSIONS)
    return caught.value.reason, caught.value.field


def passes(topic: str, event: dict[str, Any]) -> None:
    """The event is taken."""
    check_event(topic, event, embedding_dimensions=DIMENSIONS)


@pytest.mark.parametrize("field", ["insight_id", "channel_id"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "empty_id"),
        (" \t ", "empty_id"),
        ("x" * (ID_BYTES_MAX + 1), "too_long"),
        ("€" * (ID_BYTES_MAX // 3 + 1), "too_long"),
        ("a\x00b", "control_character"),
        ("a\nb", "control_character"),
        ("a\x7fb", "control_character"),
        ("a\x85b", "control_character"),
        ("a\ud800b", "control_character"),
    ],
)
def test_a_bad_id_is_refused(field: str, value: str, reason: str):
    """An id that is empty, too long or holds a control character is refused with its field."""
    assert (reason, field) == refused(INGESTED, {**INSIGHT, field: value})


@pytest.mark.parametrize(
    "value", ["a", "aio-libs/aiokafka", "x" * ID_BYTES_MAX, "пользователь", "a b", "😀", "a|b|c", "%00"]
)
def test_odd_ids_are_taken(value: str):
    """Slashes, spaces, any script and exactly the longest length are good ids."""
    passes(INGESTED, {**INSIGHT, "insight_id": value, "channel_id": value})
    passes("feeds.user-active", {"user_id": value, "ts": 0})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a1-*", "wildcard"),
        ("*", "wildcard"),
        ("a?", "wildcard"),
        (".", "bad_channel"),
        (" .. ", "bad_channel"),
        ("", "empty_id"),
        ("a\n", "control_character"),
    ],
)
def test_a_pattern_is_no_channel(name: str, reason: str):
    """Wherever a channel is named; a user may be called so."""
    assert refused(INGESTED, {**INSIGHT, "channel_id": name}) == (reason, "channel_id")
    retracted = {"insight_id": "i", "channel_id": name, "ts": 0}
    assert refused("feeds.insight-retracted", retracted) == (reason, "channel_id")
    one = {"user_id": "u", "channel_id": name, "subscribed": True, "ts": 0}
    assert refused("feeds.subscription-changed", one) == (reason, "channel_id")
    many = {"user_id": "u", "channels": ["good", name], "ts": 0}
    assert refused("feeds.subscriptions-replaced", many) == (reason, "channels")
    if reason == "wildcard":
        passes("feeds.user-active", {"user_id": name, "ts": 0})


@pytest.mark.parametrize("name", [".github", "a.b", "renovate[bot]", "c++", "#general", "~user", "a1-"])
def test_odd_channels_are_taken(name: str):
    """Dots, brackets and signs are part of names."""
    passes(INGESTED, {**INSIGHT, "channel_id": name})


@pytest.mark.parametrize(
    ("embedding", "why"),
    [
        (b"", "wrong length"),
        (vector(1, 2, 3), "wrong length"),
        (vector(1, 2, 3, 4, 5), "wrong length"),
        (vector(1, 2, 3, 4)[:-1], "wrong length"),
        (vector(1, math.nan, 3, 4), "NaN"),
        (vector(1, math.inf, 3, 4), "infinite"),
        (vector(1, -math.inf, 3, 4), "infinite"),
        (vector(0, 0, 0, 0), "no direction"),
    ],
)
def test_a_bad_embedding_is_refused(embedding: bytes, why: str):
    """A vector of the wrong length, with NaN or infinity, or without direction is refused."""
    assert refused(INGESTED, {**INSIGHT, "embedding": embedding}) == ("bad_embedding", "embedding"), why


@pytest.mark.parametrize("numbers", [(1, 2, 3, 4), (1e-30, 0, 0, 0), (3.4e38, 3.4e38, 3.4e38, 3.4e38)])
def test_any_other_embedding_is_taken(numbers: tuple[float, ...]):
    """Tiny and huge numbers are vectors."""
    passes(INGESTED, {**INSIGHT, "embedding": vector(*numbers)})


@pytest.mark.parametrize(
    ("change", "reason", "field"),
    [
        ({"text": "x" * (TEXT_BYTES_MAX + 1)}, "too_long", "text"),
        ({"text": "€" * (TEXT_BYTES_MAX // 3 + 1)}, "too_long", "text"),
        ({"text": "x" * 5_000_000}, "too_long", "text"),
        ({"text": "a\x00b"}, "control_character", "text"),
        ({"url": "x" * (URL_BYTES_MAX + 1)}, "too_long", "url"),
        ({"url": "http://\x00"}, "control_character", "url"),
        ({"embedding_model": "m" * (ID_BYTES_MAX + 1)}, "too_long", "embedding_model"),
        ({"ts": TS_MS_MIN - 1}, "time_out_of_range", "ts"),
        ({"ts": TS_MS_MAX + 1}, "time_out_of_range", "ts"),
        ({"ts": 2**63 - 1}, "time_out_of_range", "ts"),
    ],
)
def test_what_cannot_be_stored_is_refused(change: dict[str, Any], reason: str, field: str):
    """A text over 1 MiB, a NUL, a time outside the calendar: each is refused with reason and field."""
    assert (reason, field) == refused(INGESTED, {**INSIGHT, **change})


@pytest.mark.parametrize("ts", [TS_MS_MIN, -1, 0, 4_102_444_800_000, TS_MS_MAX])
def test_any_time_in_the_calendar_is_taken(ts: int):
    """1970 and 2100 are accepted unchanged, and the calendar's ends are exact in a datetime."""
    passes(INGESTED, {**INSIGHT, "ts": ts})
    assert ts == to_ms(to_datetime(ts))


def test_texts_up_to_the_bound_are_taken():
    """Exactly 1 MiB, newlines and any script are text."""
    for text in ("x" * TEXT_BYTES_MAX, "a\nb\tc\x1b", "", "привет 😀"):
        passes(INGESTED, {**INSIGHT, "text": text})


def test_a_set_of_subscriptions_is_bounded_and_checked():
    """A thousand channels are taken, one more is not, and each is an id."""
    event: dict[str, Any] = {"user_id": "u", "ts": 0, "channels": [f"c{n}" for n in range(CHANNELS_MAX)]}
    passes("feeds.subscriptions-replaced", event)
    passes("feeds.subscriptions-replaced", {**event, "channels": []})
    assert refused("feeds.subscriptions-replaced", {**event, "channels": [*event["channels"], "one"]}) == (
        "too_many",
        "channels",
    )
    assert refused("feeds.subscriptions-replaced", {**event, "channels": ["a", ""]}) == ("empty_id", "channels")


def test_a_plan_is_a_name():
    """A plan that no policy knows is taken (it counts as free); one without a name is not."""
    passes("feeds.plan-changed", {"user_id": "u", "ts": 0, "plan": "platinum"})
    assert refused("feeds.plan-changed", {"user_id": "u", "ts": 0, "plan": ""}) == ("empty_id", "plan")
    assert refused("feeds.plan-changed", {"user_id": "u", "ts": 0, "plan": "p" * 65}) == ("too_long", "plan")


@given(st.text(max_size=600), st.text(max_size=50), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=20))
def test_any_event_has_an_outcome(insight_id: str, text: str, ts: int, embedding: bytes):
    """Any event that the schema permits is accepted or refused with a reason; PostgreSQL can store every accepted one."""
    event = {**INSIGHT, "insight_id": insight_id, "text": text, "ts": ts, "embedding": embedding}
    try:
        check_event(INGESTED, event, embedding_dimensions=DIMENSIONS)
    except InvalidEventError as error:
        field = error.field
    else:
        field = None
        assert "\x00" not in insight_id + text
        assert ts == to_ms(to_datetime(ts))
    assert field in (None, "insight_id", "text", "ts", "embedding")


ODD: dict[str, tuple[Any, ...]] = {
    "insight_id": ("", " ", "a\x00", "\x85", "\ud800", "\u65e5" * 200, "i" * ID_BYTES_MAX, "i" * (ID_BYTES_MAX + 1)),
    "channel_id": ("", "..", "a*", "c\n", "c" * (ID_BYTES_MAX + 1)),
    "ts": (TS_MS_MIN, TS_MS_MIN - 1, TS_MS_MAX, TS_MS_MAX + 1),
    "text": ("", "\x00", "t" * (TEXT_BYTES_MAX + 1), "\x01"),
    "url": ("", "\x00", "u" * (URL_BYTES_MAX + 1)),
    "embedding": (b"", vector(1.0, 0.0, 0.0, 0.0)),
    "embedding_model": ("", "\x00", "m" * (ID_BYTES_MAX + 1)),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ODD.items() for value in values])
def test_what_is_plain_at_once_passes_alone(name: str, value: Any):
    """An event that would be refused makes its batch not plain, first, last and among others."""
    odd = {**INSIGHT, name: value}
    for batch in ([odd], [INSIGHT, odd], [odd, INSIGHT], [INSIGHT, odd, INSIGHT]):
        if are_plain_insights(batch):  # type: ignore[arg-type]
            passes(INGESTED, odd)


def test_ordinary_insights_are_plain_at_once():
    """With and without text and address, and none at all."""
    full = {**INSIGHT, "text": "a text", "url": "https://example.org"}
    assert are_plain_insights([])
    assert are_plain_insights([INSIGHT, full])  # type: ignore[list-item]
