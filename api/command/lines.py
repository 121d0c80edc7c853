"""Reads a file of JSON lines as events: numbers the lines, checks the events and shifts their times.

Invariant: the result of a line depends only on the line and the shift; a bad one is an `InvalidEventError`, never a
crash.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

import orjson

from highwater.schemas.avro_files import schema_text
from highwater.schemas.envelope import ms_from_iso
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.json_events import event_from_json
from highwater.schemas.topics import MESSAGE_BYTES_MAX, TOPICS
from highwater.streams.validation import check_event

# The largest message with every character escaped (\u0000 takes six bytes for one), rounded up; a longer line is not an
# event.
LINE_BYTES_MAX = 8 * MESSAGE_BYTES_MAX
_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
# The members of a record in a file of `highwater replay`. No event has all of them.
_RECORD = frozenset({"topic", "partition", "offset", "timestamp", "key", "headers", "value"})


class Line(NamedTuple):
    """A line that is not blank; `data` is None if it is longer than any event."""

    number: int
    data: bytes | None


def decompressed(stream: IO[bytes]) -> IO[bytes]:
    """Return the stream, decompressed if its first bytes are those of gzip; the file name does not matter."""
    # A second wrapper would close the stream when it is garbage-collected, and a file may be read twice.
    buffered: Any = stream if hasattr(stream, "peek") else io.BufferedReader(stream)
    if buffered.peek(len(_GZIP_MAGIC))[: len(_GZIP_MAGIC)] == _GZIP_MAGIC:
        return io.BufferedReader(gzip.GzipFile(fileobj=buffered), buffer_size=1 << 18)
    return buffered  # type: ignore[no-any-return]


def iter_lines(stream: IO[bytes], bytes_max: int = LINE_BYTES_MAX) -> Iterator[Line]:
    """Yield the lines that are not blank, numbered from 1 as in an editor."""
    number = 0
    while data := stream.readline(bytes_max + 1):
        number += 1
        if len(data) > bytes_max:
            while data and not data.endswith(b"\n"):
                data = stream.readline(bytes_max)
            yield Line(number, None)
            continue
        if number == 1:
            data = data.removeprefix(_BOM)
        if not data.isspace() and data:
            yield Line(number, data)


@functools.cache
def time_fields(topic: str) -> tuple[str, ...]:
    """Return the fields of a topic's events that are times."""
    names = []
    for field in json.loads(schema_text(TOPICS[topic].schema))["fields"]:
        kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
        if any(isinstance(kind, dict) and kind.get("logicalType") == "timestamp-millis" for kind in kinds):
            names.append(field["name"])
    return tuple(names)


def anchor_field(topic: str) -> str | None:
    """Return the field whose largest value marks the end of a file: `ts`, else the first time field; None without any."""
    names = time_fields(topic)
    return "ts" if "ts" in names else next(iter(names), None)


def event_of(topic: str, line: Line, *, shift_ms: int, embedding_dimensions: int) -> dict[str, Any]:
    """Return the event of a line, its times shifted by `shift_ms`.

    Raises:
        InvalidEventError: the line is not an event of the topic; gives the reason.
    """
    if line.data is None:
        raise InvalidEventError("too_long", f"the line is longer than {LINE_BYTES_MAX} bytes")
    try:
        document = _document_of(line.data)
    except orjson.JSONDecodeError as error:
        raise InvalidEventError("not_json", f"not JSON: {error}") from error
    event = event_from_json(topic, document)
    if shift_ms:
        for name in time_fields(topic):
            if event[name] is not None:
                event[name] += shift_ms
    check_event(topic, event, embedding_dimensions=embedding_dimensions)
    return event


def _document_of(data: bytes) -> Any:
    """Return the document of a line: an event, or the value of a record that `highwater replay` wrote."""
    document = orjson.loads(data)
    return document["value"] if isinstance(document, dict) and document.keys() == _RECORD else document


def latest_ms(topic: str, open_lines: Callable[[], Iterator[Line]], *, embedding_dimensions: int) -> int | None:
    """Return the largest time of the file's valid events; None if no event has a time.

    Checking every line would cost as much as publishing it. So only the times are read first, and only the line with
    the largest time is checked. If that line is invalid, which is rare, every line is checked.
    """
    field = anchor_field(topic)
    if field is None:
        return None
    newest = max(_told_times(field, open_lines()), default=None, key=lambda found: found[0])
    if newest is None:
        return None
    if _is_good(topic, newest[1], embedding_dimensions):
        return newest[0]
    return max(_checked_times(topic, field, open_lines(), embedding_dimensions), default=None)


def _told_times(field: str, lines: Iterator[Line]) -> Iterator[tuple[int, Line]]:
    for line in lines:
        try:
            told = _document_of(line.data or b"")[field]
            yield (told if isinstance(told, int) else ms_from_iso(told)), line
        except (ValueError, TypeError, KeyError, IndexError, OverflowError):
            continue  # no time; such a line is reported with its number when the file is published


def _checked_times(topic: str, field: str, lines: Iterator[Line], embedding_dimensions: int) -> Iterator[int]:
    for line in lines:
        try:
            event = event_of(topic, line, shift_ms=0, embedding_dimensions=embedding_dimensions)
        except InvalidEventError:
            continue  # as above
        if event[field] is not None:
            yield event[field]


def _is_good(topic: str, line: Line, embedding_dimensions: int) -> bool:
    try:
        event_of(topic, line, shift_ms=0, embedding_dimensions=embedding_dimensions)
    except InvalidEventError:
        return False
    return True


def key_of(event: dict[str, Any], field: str) -> str:
    """Return the record's key; several key fields are joined as in the catalogue of topics.

    Raises:
        InvalidEventError: the event has no text there.
    """
    values = [event.get(name) for name in field.split("|")]
    if not all(isinstance(value, str) and value for value in values):
        raise InvalidEventError("missing_key", f"the key field {field!r} is empty", field=field)
    return "|".join(map(str, values))
