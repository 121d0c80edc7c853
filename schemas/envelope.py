"""Record headers after the CloudEvents 1.0 Kafka binding, binary mode, with the position of the causing event.

`ce_causedby` is an extension attribute (lower-case letters only, as CloudEvents requires): `topic/partition/offset`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache

from highwater.schemas.carried import carried_headers
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.positions import Position, parse_position

Headers = list[tuple[str, bytes]]
# As text; of a name that occurs several times all values.
HeaderTexts = dict[str, "str | list[str | None] | None"]

# Replaces the headers of a record with a header name that is not UTF-8, which librdkafka's client cannot represent.
HEADERS_UNREADABLE = ("dlq_headers_unreadable", b"")

# The end of the year 9999, after which there are no ISO 8601 times with four-digit years.
TIME_MS_END = 253_402_300_800_000
_CONTENT_TYPE = ("content-type", b"application/avro")
_SPEC_VERSION = ("ce_specversion", b"1.0")


def iso_from_ms(ms: int) -> str:
    """Return UTC ISO 8601 with `Z`, with milliseconds only if there are any."""
    moment = datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds" if ms % 1000 else "seconds").replace("+00:00", "Z")


def text_of(raw: bytes | None) -> str | None:
    """Return bytes as UTF-8 text; invalid bytes are shown as escapes."""
    return None if raw is None else raw.decode("utf-8", "backslashreplace")


def headers_of(headers: Headers | None) -> HeaderTexts:
    """Return headers as text; a name that occurs several times has the list of its values."""
    found: dict[str, list[str | None]] = {}
    for name, value in headers or ():
        found.setdefault(name, []).append(text_of(value))
    return {name: values if len(values) > 1 else values[0] for name, values in found.items()}


def iso_or_number(ms: int) -> str | int:
    """Return the time of a record or a field as `iso_from_ms`; one that no calendar has (in microseconds, say) as a number.

    Producers choose the times of their records.
    """
    try:
        return iso_from_ms(ms)
    except (ValueError, OverflowError, OSError):
        return ms


def iso_from_ms_or_none(ms: int | None) -> str | None:
    """Return `iso_from_ms`, or None for an unknown time."""
    return None if ms is None else iso_from_ms(ms)


def ms_from_iso(text: str) -> int:
    """Return the milliseconds since 1970 of an ISO 8601 time; one without an offset counts as UTC.

    Raises:
        ValueError: the text is not a time.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000


# The attributes that CloudEvents requires of every event; `ce_time` is optional.
REQUIRED_ATTRIBUTES = ("ce_specversion", "ce_id", "ce_type", "ce_source")
# Names the attributes that a dead letter has and its original had not.
ADDED = "dlq_added"
_URI_REFERENCE = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")


@lru_cache(maxsize=256)
def _source_of(source: str) -> bytes:
    """Return the value of `ce_source`: a URI reference, as CloudEvents requires.

    Raises:
        ValueError: it is not one.
    """
    if _URI_REFERENCE.fullmatch(source) is None:
        raise ValueError(f"{source!r} is not a URI reference")
    return source.encode()


def missing_attributes(
    headers: Iterable[tuple[str, bytes | None]], origin: Position, *, group: str, topic: str, arrived_ms: int | None
) -> Headers:
    """Return the CloudEvents attributes that an outsider's record lacks, for its dead letter in `topic`.

    Existing ones stay unchanged: a dead letter holds the original. The last header names the added ones, so that they
    are removed when the letter is sent again.
    """
    letter: Headers = [
        _SPEC_VERSION,
        ("content-type", b"application/octet-stream"),
        ("ce_id", str(origin).encode()),
        ("ce_type", topic.encode()),
        ("ce_source", _source_of(f"/dead-letters/{group}")),
    ]
    if arrived_ms is not None and 0 <= arrived_ms < TIME_MS_END:
        letter.append(("ce_time", iso_from_ms(arrived_ms).encode()))
    known = {name for name, _ in headers}
    added = [(name, value) for name, value in letter if name not in known]
    return [*added, (ADDED, ",".join(name for name, _ in added).encode())] if added else []


def added_attributes(headers: Iterable[tuple[str, bytes | None]] | None) -> frozenset[str]:
    """Return the names of the attributes that a dead letter has and its original had not."""
    return frozenset((header(headers, ADDED) or "").split(","))


def make_headers(*, event_id: str, event_type: str, source: str, now_ms: int, caused_by: Position | None) -> Headers:
    """Return the headers of one of our own events."""
    headers: Headers = [
        _SPEC_VERSION,
        _CONTENT_TYPE,
        ("ce_id", event_id.encode()),
        ("ce_type", event_type.encode()),
        ("ce_source", _source_of(source)),
        ("ce_time", iso_from_ms(now_ms).encode()),
    ]
    if caused_by is not None:
        headers += [("ce_causedby", str(caused_by).encode()), *carried_headers(caused_by)]
    return headers


def header(headers: Iterable[tuple[str, bytes | None]] | None, name: str) -> str | None:
    """Return the last header with that name as text, undecodable bytes replaced; None without one."""
    found = [value for key, value in headers or () if key == name]
    return found[-1].decode("utf-8", "replace") if found and found[-1] is not None else None


def caused_by(headers: Iterable[tuple[str, bytes | None]] | None) -> Position | None:
    """Return the position in `ce_causedby`; None if it is absent or malformed, since outsiders may send anything."""
    text = header(headers, "ce_causedby")
    if text is None:
        return None
    try:
        return parse_position(text)
    except InvalidEventError:
        return None
