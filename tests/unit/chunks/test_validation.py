"""The rules for events of chunks beyond their schema."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from highwater.schemas.chunks import CHUNK_SUBMITTED, INGEST_FINISHED
from highwater.schemas.errors import InvalidEventError
from highwater.streams.chunks.validation import (
    CONTENT_BYTES_MAX,
    DIMENSIONS_MAX,
    IDENTITY,
    NUMBER_MAX,
    TITLE_BYTES_MAX,
    URL_BYTES_MAX,
    check_chunks_event,
)
from highwater.streams.validation import check_event

KEY = {"ingest_id": "i1", "ns": "docs", "slot": "main", "source_id": "a.md"}
CHUNK = {**KEY, "chunk_no": 0, "content": "Text", "title": None, "url": None, "embedding": None, "published_at": None}
END = {**KEY, "full": True, "expected_count": 1, "truncated": False, "ts": 1, "force": False, "window": None}


def vector(*values: float) -> bytes:
    """Little-endian float32."""
    return np.array(values, dtype="<f4").tobytes()


def refused(topic: str, event: dict[str, Any]) -> tuple[str, str | None]:
    """Reason and field."""
    with pytest.raises(InvalidEventError) as caught:
        check_chunks_event(topic, event)
    return caught.value.reason, caught.value.field


GOOD: list[dict[str, Any]] = [
    {},
    {"content": "x" * CONTENT_BYTES_MAX},
    {"content": "ü" * (CONTENT_BYTES_MAX // 2)},
    {"content": "😀\t\r\n\x01"},
    {"title": "", "url": "x" * URL_BYTES_MAX},
    {"chunk_no": NUMBER_MAX},
    {"embedding": vector(1.0)},
    {"embedding": vector(*[0.0] * (DIMENSIONS_MAX - 1), -1.0)},
    {"embedding": vector(65_504.0, -65_504.0)},
    {"embedding": vector(2.0**-14, 0.0)},
    {"published_at": 0},
    {"published_at": -62_135_596_799_999},
]


@pytest.mark.parametrize("changes", GOOD, ids=lambda changes: ",".join(changes) or "plain")
def test_a_good_chunk_is_taken(changes: dict[str, Any]):
    """Texts as they are, up to the limits; vectors that half precision holds."""
    check_event(CHUNK_SUBMITTED, {**CHUNK, **changes}, embedding_dimensions=384)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"chunk_no": -1}, "bad_number"),
    ({"chunk_no": NUMBER_MAX + 1}, "bad_number"),
    ({"content": "a\x00b"}, "control_character"),
    ({"content": "a\ud83db"}, "control_character"),
    ({"content": "x" * (CONTENT_BYTES_MAX + 1)}, "too_long"),
    ({"content": "ü" * (CONTENT_BYTES_MAX // 2 + 1)}, "too_long"),
    ({"title": "\x00"}, "control_character"),
    ({"title": "x" * (TITLE_BYTES_MAX + 1)}, "too_long"),
    ({"url": "\udc00"}, "control_character"),
    ({"url": "x" * (URL_BYTES_MAX + 1)}, "too_long"),
    ({"embedding": b""}, "bad_embedding"),
    ({"embedding": b"\x00\x00\x80?\x00"}, "bad_embedding"),
    ({"embedding": vector(*[1.0] * (DIMENSIONS_MAX + 1))}, "bad_embedding"),
    ({"embedding": vector(1.0, math.nan)}, "bad_embedding"),
    ({"embedding": vector(1.0, -math.inf)}, "bad_embedding"),
    ({"embedding": vector(0.0, 0.0)}, "bad_embedding"),
    ({"embedding": vector(65_520.0, 0.0)}, "bad_embedding"),
    ({"embedding": vector(1e-5, 1e-5)}, "bad_embedding"),
    ({"published_at": 253_402_300_800_000}, "time_out_of_range"),
]


@pytest.mark.parametrize(("changes", "reason"), BAD)
def test_a_bad_chunk_is_refused_by_a_field_of_its_own(changes: dict[str, Any], reason: str):
    """The field is none of its identity, so that its ingest is known."""
    found, field = refused(CHUNK_SUBMITTED, {**CHUNK, **changes})
    assert (found, field) == (reason, *changes)[:2]
    assert field not in IDENTITY


@pytest.mark.parametrize("topic", [CHUNK_SUBMITTED, INGEST_FINISHED])
@pytest.mark.parametrize("name", sorted(IDENTITY))
def test_a_fault_in_the_identity_is_named_first(topic: str, name: str):
    """This holds for an event with other faults too, since it belongs to no ingest."""
    event = {**(CHUNK if topic == CHUNK_SUBMITTED else END), "chunk_no": -1, "expected_count": -1, name: "a\x00"}
    assert refused(topic, event) == ("control_character", name)


@pytest.mark.parametrize("name", ["ns", "slot", "source_id"])
def test_no_part_of_a_key_holds_the_separator(name: str):
    """An ingest's id may: it is in no hash."""
    assert refused(CHUNK_SUBMITTED, {**CHUNK, name: "a|b"}) == ("separator", name)
    check_chunks_event(CHUNK_SUBMITTED, {**CHUNK, "ingest_id": "a|b"})


@pytest.mark.parametrize(
    "window",
    [
        None,
        "{}",
        '{"source": "github", "page_from": 1, "cursor": null, "truncated": false}',
        r'{"a": "\\u0000"}',
        '{"a": 1e300}',
    ],
)
def test_a_good_end_is_taken(window: str | None):
    """With any JSON object that the store holds."""
    check_chunks_event(INGEST_FINISHED, {**END, "window": window})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"expected_count": -1}, "bad_number"),
        ({"ts": 1 << 60}, "time_out_of_range"),
        ({"window": "no JSON"}, "bad_window"),
        ({"window": "[1]"}, "bad_window"),
        ({"window": r'{"a": "\u0000"}'}, "bad_window"),
        ({"window": r'{"a\\\u0000": 1}'}, "bad_window"),
        ({"window": r'{"a": "\ud800"}'}, "bad_window"),
        ({"window": '{"a": NaN}'}, "bad_window"),
        ({"window": '{"a": "' + "x" * 8_192 + '"}'}, "too_long"),
    ],
)
def test_a_bad_end_is_refused(changes: dict[str, Any], reason: str):
    """With the field at fault."""
    assert refused(INGEST_FINISHED, {**END, **changes}) == (reason, *changes)


@pytest.mark.parametrize("content", ["", " ", "\t\n\u00a0\u3000", "\u200b\ufeff", "\x01\u00ad "])
def test_an_empty_chunk_is_refused(content: str):
    """Also one of white space, or of characters that show nothing; one visible character makes a text."""
    assert refused(CHUNK_SUBMITTED, {**CHUNK, "content": content}) == ("empty_text", "content")
    check_chunks_event(CHUNK_SUBMITTED, {**CHUNK, "content": f"{content}."})
