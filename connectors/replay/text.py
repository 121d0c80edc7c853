"""Records as lines of JSON, built from columns for a whole batch or from rows one by one.

Invariant: both ways give the same bytes. Times are ISO 8601, bytes base64, as `tail` and the API show them.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from highwater.connectors.replay.decoding import Decoded
from highwater.schemas.envelope import Headers, headers_of, iso_or_number, text_of
from highwater.schemas.exact_json import write_json

# Characters that JSON escapes: the quote, the backslash and the control characters.
_IS_ESCAPED = np.isin(np.arange(256), [*range(0x20), *b'"\\'])
_ISO_MIN_MS, _ISO_MAX_MS = -62_135_596_800_000, 253_402_300_799_999  # the years 1 to 9999
_TIME_LETTERS = len("2026-01-31 12:00:00.000")


def header_texts(headers: Headers | None) -> dict[str, str | None]:
    """Return headers for a column of texts; of a name that occurs several times the values as a JSON array."""
    return {
        name: orjson.dumps(values).decode() if isinstance(values, list) else values
        for name, values in headers_of(headers).items()
    }


def base64_of(raw: Any) -> str:
    """Return bytes in base64."""
    return base64.b64encode(raw).decode()


def json_lines(decoded: Decoded) -> Any:
    """Return the lines of a batch, as one buffer of bytes."""
    return _of_columns(decoded) if decoded.made_column is not None and not decoded.problems else _of_rows(decoded)


def documents(decoded: Decoded) -> list[dict[str, Any]]:
    """Return each record as a JSON document; with `undecodable` and `bytes_base64` if the value is not an event.

    The value `null` of JSON has `bytes_base64`, unlike a tombstone.
    """
    batch, kinds = decoded.batch, list(decoded.arrow_type)
    times = [field.name for field in kinds if is_millis(field.type)]
    found = []
    numbers = zip(batch.partitions.tolist(), batch.offsets.tolist(), batch.times_ms.tolist(), strict=True)
    for place, (partition, offset, arrived_ms) in enumerate(numbers):
        row = decoded.rows[place]
        if row is not None and times:
            row = {**row, **{name: iso_or_number(row[name]) for name in times if row[name] is not None}}
        document = {
            "topic": batch.topic,
            "partition": partition,
            "offset": offset,
            "timestamp": iso_or_number(arrived_ms),
            "key": text_of(batch.keys[place]),
            "headers": headers_of(batch.headers[place]),
            "value": row,
        }
        if place in decoded.problems:
            document["undecodable"] = decoded.problems[place]
        if row is None and batch.values[place] is not None:
            document["bytes_base64"] = base64_of(batch.values[place])
        found.append(document)
    return found


def is_millis(kind: pa.DataType) -> bool:
    """Return whether these are times that are shown as ISO 8601."""
    return bool(pa.types.is_timestamp(kind)) and kind.unit == "ms" and kind.tz is not None


def _of_rows(decoded: Decoded) -> bytes:
    return b"".join(write_json(document, orjson.OPT_APPEND_NEWLINE) for document in documents(decoded))


class _Line:
    """The pieces of a line in order; adjacent texts become one, since each piece costs the same."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self._text = ""

    def add(self, *pieces: Any) -> None:
        """Add texts, and columns of strings without null."""
        for piece in pieces:
            if isinstance(piece, str):
                self._text += piece
            else:
                self._end_text()
                self.pieces.append(piece)

    def _end_text(self) -> None:
        if self._text:
            self.pieces.append(pa.scalar(self._text, pa.string()))
        self._text = ""

    def joined(self) -> Any:
        """Return all lines as one buffer: the data of the joined strings, without a copy."""
        self._end_text()
        joined = pc.binary_join_element_wise(*self.pieces, "")
        offsets = np.frombuffer(joined.buffers()[1], np.int32)
        return memoryview(joined.buffers()[2])[int(offsets[joined.offset]) : int(offsets[joined.offset + len(joined)])]


def _of_columns(decoded: Decoded) -> Any:
    """Return the pieces of all lines, joined by Arrow."""
    batch, line = decoded.batch, _Line()
    line.add('{"topic":' + orjson.dumps(batch.topic).decode() + ',"partition":')
    line.add(pc.cast(pa.array(batch.partitions), pa.string()), ',"offset":')
    line.add(pc.cast(pa.array(batch.offsets), pa.string()), ',"timestamp":', json_times(batch.times_ms), ',"key":')
    line.add(*_json_strings(key_column(batch.keys)), ',"headers":', _json_headers(batch.headers))
    lead = ',"value":{'
    for place, field in enumerate(decoded.arrow_type):
        line.add(lead + orjson.dumps(field.name).decode() + ":")
        line.add(*_json_column(decoded.made_column.field(place)))  # type: ignore[union-attr]
        lead = ","
    line.add("}}\n")
    return line.joined()


def _json_headers(headers: list[Headers | None]) -> Any:
    if not any(headers):
        return "{}"
    return pa.array([orjson.dumps(headers_of(one)).decode() if one else "{}" for one in headers], pa.string())


def key_column(keys: list[bytes | None]) -> pa.Array:
    """Return keys as text."""
    try:
        return pa.array(keys, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([text_of(key) for key in keys], pa.string())


def _json_strings(column: pa.Array) -> tuple[Any, ...]:
    """Return strings as JSON writes them, null as null: pieces of a line."""
    if column.null_count == len(column):
        return ("null",)
    column = _escaped(column)
    if not column.null_count:
        return '"', column, '"'
    quote = pa.scalar('"', pa.string())
    return (pc.binary_join_element_wise(quote, column, quote, "").fill_null("null"),)


def _escaped(column: pa.Array) -> pa.Array:
    """Return the strings with JSON escapes. All bytes are checked together; few strings need escapes."""
    letters = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    ends = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    found = np.flatnonzero(_IS_ESCAPED[letters[ends[0] : ends[-1]]])
    if not len(found):
        return column
    where = np.zeros(len(column), np.bool_)
    where[np.searchsorted(ends, found + ends[0], "right") - 1] = True
    mended = [text and orjson.dumps(text)[1:-1].decode() for text in column.filter(pa.array(where)).to_pylist()]
    return pc.replace_with_mask(column, pa.array(where), pa.array(mended, pa.string()))


def _json_column(column: pa.Array) -> tuple[Any, ...]:
    """Return a field as JSON writes it: pieces of a line."""
    kind = column.type
    if column.null_count == len(column):
        return ("null",)
    if pa.types.is_string(kind):
        return _json_strings(column)
    if pa.types.is_boolean(kind):
        return (pc.if_else(column, "true", "false").fill_null("null"),)
    if pa.types.is_integer(kind):
        return (column.cast(pa.string()).fill_null("null"),)
    if is_millis(kind):
        numbers = column.cast(pa.int64())
        times = json_times(numbers.fill_null(0).to_numpy(zero_copy_only=False))
        return (times if not column.null_count else pc.if_else(numbers.is_valid(), times, "null"),)
    plain = column.cast(pa.int64()) if pa.types.is_temporal(kind) else column
    return (pa.array([write_json(value).decode() for value in plain.to_pylist()], pa.string()),)


def json_times(ms: NDArray[np.int64]) -> pa.Array:
    """Return times as JSON writes them: quoted, or a number outside the years 1 to 9999."""
    if ((ms < _ISO_MIN_MS) | (ms > _ISO_MAX_MS)).any():
        return pa.array([orjson.dumps(iso_or_number(one)).decode() for one in ms.tolist()], pa.string())
    return _letters_of_times(ms, quote='"')


def iso_times(ms: NDArray[np.int64]) -> pa.Array:
    """Return times as ISO 8601, with milliseconds only if there are any; outside the years 1 to 9999 as numbers."""
    if ((ms < _ISO_MIN_MS) | (ms > _ISO_MAX_MS)).any():
        return pa.array([str(iso_or_number(one)) for one in ms.tolist()], pa.string())
    return _letters_of_times(ms, quote="")


def _letters_of_times(ms: NDArray[np.int64], quote: str) -> pa.Array:
    """Return times of the years 1 to 9999 in quotes, from Arrow's form: `2026-01-31 12:00:00.000`."""
    count, first = len(ms), len(quote)
    if not count:
        return pa.array([], pa.string())
    plain = pa.array(ms).cast(pa.timestamp("ms")).cast(pa.string())
    letters = np.empty((count, first + _TIME_LETTERS + 1 + first), np.uint8)
    letters[:, first : first + _TIME_LETTERS] = np.frombuffer(plain.buffers()[2], np.uint8).reshape(-1, _TIME_LETTERS)
    letters[:, first + len("2026-01-31")] = ord("T")
    tail = np.frombuffer(f"Z{quote}".encode(), np.uint8)
    letters[:, -len(tail) :] = tail
    letters[:, :first] = tail[1:]
    lengths = np.full(count, letters.shape[1], np.int32)
    is_whole = ms % 1000 == 0
    if is_whole.any():
        letters[is_whole, -len(tail) - len(".000") : -len(".000")] = tail
        lengths[is_whole] -= len(".000")
        letters = letters[np.arange(letters.shape[1]) < lengths[:, None]]
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(letters)])
