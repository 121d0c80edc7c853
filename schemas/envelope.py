"""Record headers after the CloudEvents 1.0 Kafka binding, binary mode, with the position of the causing event.

`ce_causedby` is an extension attribute (lower-case letters only, as CloudEvents asks): `topic/partition/offset`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from highwater.schemas.carried import carried_headers
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.positions import Position, parse_position

Headers = list[tuple[str, bytes]]

# Stands for the headers of a record where the name of one is not UTF-8, which librdkafka's client cannot show.
HEADERS_UNREADABLE = ("dlq_headers_unreadable", b"")

_CONTENT_TYPE = ("content-type", b"application/avro")
_SPEC_VERSION = ("ce_specversion", b"1.0")


def iso_from_ms(ms: int) -> str:
    """UTC ISO 8601 with `Z`, milliseconds only when there are any."""
    moment = datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds" if ms % 1000 else "seconds").replace("+00:00", "Z")


def ms_from_iso(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time; one without an offset counts as UTC.

    Raises:
        ValueError: the text is not a time.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000


def make_headers(*, event_id: str, event_type: str, source: str, now_ms: int, caused_by: Position | None) -> Headers:
    """The headers of one of our own events."""
    headers: Headers = [
        _SPEC_VERSION,
        _CONTENT_TYPE,
        ("ce_id", event_id.encode()),
        ("ce_type", event_type.encode()),
        ("ce_source", source.encode()),
        ("ce_time", iso_from_ms(now_ms).encode()),
    ]
    if caused_by is not None:
        headers += [("ce_causedby", str(caused_by).encode()), *carried_headers(caused_by)]
    return headers


def header(headers: Iterable[tuple[str, bytes | None]] | None, name: str) -> str | None:
    """The last header of that name as text, undecodable bytes replaced; None when there is none."""
    found = [value for key, value in headers or () if key == name]
    return found[-1].decode("utf-8", "replace") if found and found[-1] is not None else None


def caused_by(headers: Iterable[tuple[str, bytes | None]] | None) -> Position | None:
    """The position in `ce_causedby`; None when it is absent or malformed, since outsiders may send anything."""
    text = header(headers, "ce_causedby")
    if text is None:
        return None
    try:
        return parse_position(text)
    except InvalidEventError:
        return None
