"""Rules for events of chunks beyond their schema, the same at the API, in `publish` and in the sink.

Decided from the event alone, never from the clock or the store: the sink checks the dimension of a vector against its
namespace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from highwater.schemas.chunks import CHUNK_SUBMITTED, INGEST_FINISHED
from highwater.schemas.errors import InvalidEventError
from highwater.streams.checks import check_id, check_not_blank, check_text, check_time, unless_null
from highwater.streams.chunks.identity import check_key_part

# The fields that identify the source of a chunk: one with an error in them belongs to no ingest, and is counted in
# none.
IDENTITY = frozenset({"ns", "slot", "source_id", "ingest_id"})

# A chunk is a page or two; a text of this length is an uncut document.
CONTENT_BYTES_MAX = 1 << 20
TITLE_BYTES_MAX = 8 << 10
URL_BYTES_MAX = 8 << 10
WINDOW_BYTES_MAX = 8 << 10
# Exact in any JSON reader, and far from the end of the integer range.
NUMBER_MAX = (1 << 53) - 1
# The limit of an HNSW index with half precision (pgvector).
DIMENSIONS_MAX = 4_000
# The smallest and the largest normal number of half precision, which the index holds: a vector whose values are all
# below the first has no direction there, and one with a value above the second cannot be indexed.
PEAK_MIN, PEAK_MAX = 2.0**-14, 65_504.0

# NUL as JSON writes it, not a backslash followed by `u0000`.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def check_chunks_event(topic: str, event: Mapping[str, Any]) -> None:
    """Check a decoded event of a topic of the chunks; times in ms since 1970.

    Raises:
        InvalidEventError: names the field at fault and a machine-readable reason; fields of `IDENTITY` come first.
    """
    check_ingest(topic, event)
    for name, check in _CHECKS[topic]:
        check(name, event[name])


def check_ingest(_topic: str, event: Mapping[str, Any]) -> None:
    """Check the fields of `IDENTITY`: with them an event belongs to an ingest, even if the rest is invalid.

    Raises:
        InvalidEventError: one is invalid.
    """
    _check_identity(event["ns"], event["slot"], event["source_id"], event["ingest_id"])


@lru_cache(maxsize=1_024)  # chunks of a source come one after the other; a batch holds those of a few hundred
def _check_identity(ns: str, slot: str, source_id: str, ingest_id: str) -> None:
    check_key_part("ns", ns)
    check_key_part("slot", slot)
    check_key_part("source_id", source_id)
    check_id("ingest_id", ingest_id)


def check_embedding(name: str, value: bytes) -> None:
    """Check that a vector is 1 to 4,000 float32, little-endian, finite and with a direction, also at half precision.

    Raises:
        InvalidEventError: it is not.
    """
    if len(value) % 4 or not 0 < len(value) <= 4 * DIMENSIONS_MAX:
        raise InvalidEventError(
            "bad_embedding", f"{name} has {len(value)} bytes; 1 to {DIMENSIONS_MAX} float32 take 4 each", field=name
        )
    peak = float(np.abs(np.frombuffer(value, dtype="<f4")).max())  # NaN if any value is
    if not PEAK_MIN <= peak <= PEAK_MAX:
        detail = f"the largest value of {name} is {peak:.3g}; it must lie between {PEAK_MIN:.3g} and {PEAK_MAX:,.0f}"
        raise InvalidEventError("bad_embedding", detail, field=name)


def _check_stored(bytes_max: int) -> Callable[[str, str], None]:
    def check(name: str, value: str) -> None:
        check_text(name, value, bytes_max)
        try:
            value.encode()
        except UnicodeEncodeError as error:
            detail = f"{name} holds half a character (a surrogate)"
            raise InvalidEventError("control_character", detail, field=name) from error

    return check


def check_content(name: str, value: str) -> None:
    """Check that the content of a chunk is not blank: such a chunk could only be found by mistake.

    Raises:
        InvalidEventError: it is.
    """
    _check_stored(CONTENT_BYTES_MAX)(name, value)
    check_not_blank(name, value)


def _check_number(name: str, value: int) -> None:
    if not 0 <= value <= NUMBER_MAX:
        raise InvalidEventError("bad_number", f"{name} is {value}; it must lie between 0 and {NUMBER_MAX}", field=name)


def _check_window(name: str, value: str) -> None:
    check_text(name, value, WINDOW_BYTES_MAX)
    try:
        said = orjson.loads(value)
    except ValueError as error:
        raise InvalidEventError("bad_window", f"{name} is not JSON: {error}", field=name) from error
    if not isinstance(said, dict) or _NUL.search(orjson.dumps(said)):
        raise InvalidEventError("bad_window", f"{name} is not a JSON object that can be stored", field=name)


# Checked in this order, so that of several faults the first field's is named.
_CHECKS: Mapping[str, tuple[tuple[str, Callable[[str, Any], None]], ...]] = {
    CHUNK_SUBMITTED: (
        ("chunk_no", _check_number),
        ("content", check_content),
        ("title", unless_null(_check_stored(TITLE_BYTES_MAX))),
        ("url", unless_null(_check_stored(URL_BYTES_MAX))),
        ("embedding", unless_null(check_embedding)),
        ("published_at", unless_null(check_time)),
    ),
    INGEST_FINISHED: (
        ("expected_count", _check_number),
        ("ts", check_time),
        ("window", unless_null(_check_window)),
    ),
}
