"""Owns records as lines of JSON, made of columns for a whole batch at once or of rows one by one.

Law: both ways give the same bytes. Times are ISO 8601, bytes base64, as `tail` and the API show them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from connectors.replay.decoding import Decoded
from schemas.envelope import Headers, iso_from_ms

# What JSON writes otherwise than it is: the quote, the backslash and the control characters.
_ESCAPED = r'["\\\x00-\x1f]'
_ISO_MIN_MS, _ISO_MAX_MS = -62_135_596_800_000, 253_402_300_799_999  # the years 1 to 9999
_JOIN = pc.JoinOptions(null_handling="replace", null_replacement="null")


def text_of(raw: bytes | None) -> str | None:
    """Bytes that should be UTF-8; those that are not are shown as escapes."""
    return None if raw is None else raw.decode("utf-8", "backslashreplace")


def headers_of(headers: Headers | None) -> dict[str, str | None]:
    """Headers as text; of several with one name the last, as everywhere."""
    return {name: text_of(value) for name, value in headers or ()}


def iso_or_number(ms: int) -> str | int:
    """A time as ISO 8601; one beyond the year 9999 as it is."""
    try:
        return iso_from_ms(ms)
    except (ValueError, OverflowError, OSError):
        return ms


def base64_of(raw: Any) -> str:
    """Bytes in base64; for orjson, which asks for what it does not know."""
    if isinstance(raw, bytes):
        return base64.b64encode(raw).decode()
    raise TypeError(type(raw).__name__)


def json_lines(decoded: Decoded) -> Any:
    """The lines of a batch, as one buffer of bytes."""
    return _of_columns(decoded) if decoded.made_column is not None and not decoded.problems else _of_rows(decoded)


def documents(decoded: Decoded) -> list[dict[str, Any]]:
    """Each record as a JSON document; `undecodable` and `bytes_base64` beside a value that is no event."""
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
            document["bytes_base64"] = base64_of(batch.values[place])
        found.append(document)
    return found


def is_millis(kind: pa.DataType) -> bool:
    """Whether these are the times that are shown as ISO 8601."""
    return bool(pa.types.is_timestamp(kind)) and kind.unit == "ms" and kind.tz is not None


def _of_rows(decoded: Decoded) -> bytes:
    return b"".join(
        orjson.dumps(document, default=base64_of, option=orjson.OPT_APPEND_NEWLINE) for document in documents(decoded)
    )


def _of_columns(decoded: Decoded) -> Any:
    """The pieces of all lines, joined by Arrow; the data of the joined strings is the text, without a copy."""
    batch = decoded.batch
    pieces: list[Any] = [
        '{"topic":' + orjson.dumps(batch.topic).decode() + ',"partition":',
        pc.cast(pa.array(batch.partitions), pa.string()),
        ',"offset":',
        pc.cast(pa.array(batch.offsets), pa.string()),
        ',"timestamp":',
        json_times(batch.times_ms),
        ',"key":',
        json_strings(key_column(batch.keys)),
        ',"headers":',
        _json_headers(batch.headers),
    ]
    lead = ',"value":{'
    for place, field in enumerate(decoded.arrow_type):
        pieces += [lead + orjson.dumps(field.name).decode() + ":", _json_column(decoded.made_column.field(place))]  # type: ignore[union-attr]
        lead = ","
    pieces.append("}}\n")
    joined = pc.binary_join_element_wise(*[_scalar(piece) for piece in pieces], "", options=_JOIN)
    offsets = np.frombuffer(joined.buffers()[1], np.int32)
    return memoryview(joined.buffers()[2])[int(offsets[joined.offset]) : int(offsets[joined.offset + len(joined)])]


def _scalar(piece: Any) -> Any:
    return pa.scalar(piece, pa.string()) if isinstance(piece, str) else piece


def _json_headers(headers: list[Headers | None]) -> Any:
    if not any(headers):
        return "{}"
    return pa.array([orjson.dumps(headers_of(one)).decode() if one else "{}" for one in headers], pa.string())


def key_column(keys: list[bytes | None]) -> pa.Array:
    """Keys as text."""
    try:
        return pa.array(keys, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([text_of(key) for key in keys], pa.string())


def json_strings(column: pa.Array) -> pa.Array:
    """Strings as JSON writes them; a null stays one."""
    column = _mended(column, pc.match_substring_regex(column, _ESCAPED), lambda text: orjson.dumps(text)[1:-1].decode())
    quote = pa.scalar('"', pa.string())
    return pc.binary_join_element_wise(quote, column, quote, "")  # null where the string is


def _mended(column: pa.Array, where: pa.Array, mend: Callable[[str], str]) -> pa.Array:
    where = where.fill_null(False)
    if not pc.any(where).as_py():
        return column
    return pc.replace_with_mask(column, where, pa.array([mend(text) for text in column.filter(where).to_pylist()]))


def _json_column(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind):
        return json_strings(column)
    if pa.types.is_boolean(kind):
        return pc.if_else(column, "true", "false")
    if pa.types.is_integer(kind):
        return column.cast(pa.string())
    if is_millis(kind):
        numbers = column.cast(pa.int64())
        return pc.if_else(numbers.is_valid(), json_times(numbers.fill_null(0).to_numpy(zero_copy_only=False)), None)
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.string())
    plain = column.cast(pa.int64()) if pa.types.is_temporal(kind) else column
    return pa.array(
        [None if value is None else orjson.dumps(value, default=base64_of).decode() for value in plain.to_pylist()],
        pa.string(),
    )


def json_times(ms: NDArray[np.int64]) -> pa.Array:
    """Times as JSON writes them: in quotes, or a number where there is no such year."""
    if ((ms < _ISO_MIN_MS) | (ms > _ISO_MAX_MS)).any():
        return pa.array([orjson.dumps(iso_or_number(one)).decode() for one in ms.tolist()], pa.string())
    quote = pa.scalar('"')
    return pc.binary_join_element_wise(quote, iso_times(ms), quote, "")


def iso_times(ms: NDArray[np.int64]) -> pa.Array:
    """Times as ISO 8601, milliseconds only where there are any; beyond the years 1 to 9999 as numbers."""
    if ((ms < _ISO_MIN_MS) | (ms > _ISO_MAX_MS)).any():
        return pa.array([str(iso_or_number(one)) for one in ms.tolist()], pa.string())
    letters = np.datetime_as_string(ms.astype("datetime64[ms]"), unit="ms").astype("S23")
    whole = pa.Array.from_buffers(pa.binary(23), len(ms), [None, pa.py_buffer(np.ascontiguousarray(letters))])
    text = whole.cast(pa.binary()).cast(pa.string())
    text = pc.if_else(pa.array(ms % 1000 == 0), pc.utf8_slice_codeunits(text, 0, 19), text)
    return pc.binary_join_element_wise(text, pa.scalar("Z"), "")
