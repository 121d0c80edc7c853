"""Events as JSON, at the API and in `publish`: times are ISO 8601 or milliseconds, an embedding is an array or base64.

An unknown or missing field is an error that names it; an optional one may be omitted. A document is walked once, its
values counted up to what an Avro record may hold, so that no document keeps its reader busy.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
from array import array
from collections.abc import Mapping
from sys import byteorder
from typing import Any, TypeAlias

from highwater.schemas.avro_files import schema_text
from highwater.schemas.envelope import iso_or_number, ms_from_iso
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.readable import VALUES_MAX
from highwater.schemas.shapes import NESTING_MAX
from highwater.schemas.topics import TOPICS

_JSON_TYPES = {"string": str, "boolean": bool}
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
# Field name -> (Avro type without null, optional, default).
Fields: TypeAlias = Mapping[str, tuple[Any, bool, Any]]


@functools.cache
def _fields(topic: str) -> Fields:
    """Return the fields of a topic's events."""
    return _fields_of(json.loads(schema_text(TOPICS[topic].schema)))


def _fields_of(record: Mapping[str, Any]) -> Fields:
    fields = {}
    for field in record["fields"]:
        kind, optional = field["type"], "default" in field
        if isinstance(kind, list):
            kind = next(part for part in kind if part != "null")
        fields[field["name"]] = (kind, optional, field.get("default"))
    return fields


def event_from_json(topic: str, document: Any) -> dict[str, Any]:
    """Return the event of a JSON document, in the form that the codec encodes.

    Raises:
        InvalidEventError: names the field that is unknown, missing or malformed.
    """
    if not isinstance(document, dict):
        raise InvalidEventError("not_an_object", "an event is a JSON object")
    for name, value in document.items():
        _check_size(str(name)[:100], value)
    return _record(topic, _fields(topic), document, "")


def _record(about: str, fields: Fields, document: Mapping[str, Any], within: str) -> dict[str, Any]:
    """Return the record of an object; `within` is the path of its fields."""
    for name in document:
        if name not in fields:
            unknown = f"{within}{str(name)[:100]}"
            raise InvalidEventError("unknown_field", f"{about} has no field {unknown!r}", field=unknown)
    record: dict[str, Any] = {}
    for name, (kind, optional, default) in fields.items():
        value = document.get(name)
        if value is not None:
            record[name] = _from_json(f"{within}{name}", kind, value)
        elif optional:
            record[name] = [] if default == [] else default  # a list of its own
        else:
            raise InvalidEventError("missing_field", f"field {within + name!r} is missing", field=within + name)
    return record


def _check_size(name: str, value: Any) -> None:
    """Check that a field holds no more and no deeper values than an Avro record may."""
    if not isinstance(value, list | dict):
        return
    count = 0
    level: list[Any] = [value]
    for _ in range(NESTING_MAX):
        level = [one for outer in level for one in (outer.values() if isinstance(outer, dict) else outer)]
        count += len(level)
        if count > VALUES_MAX:
            raise InvalidEventError(
                "too_many_values", f"field {name!r} holds more than {VALUES_MAX:,} values", field=name
            )
        level = [one for one in level if isinstance(one, list | dict)]
        if not level:
            return
    raise InvalidEventError("too_deep", f"field {name!r} is nested deeper than {NESTING_MAX} levels", field=name)


def _kind_name(kind: Any) -> str:
    return str(kind["type"] if isinstance(kind, dict) else kind)


def _array(name: str, items: Any, value: Any) -> list[Any]:
    """Return an array of strings or of records."""
    item_type, told = (str, "strings") if items == "string" else (dict, "objects")
    if not isinstance(value, list) or not all(isinstance(item, item_type) for item in value):
        raise InvalidEventError("wrong_type", f"field {name!r} must be an array of {told}", field=name)
    if items != "string":
        fields = _fields_of(items)
        return [_record(name, fields, item, f"{name}.{place}.") for place, item in enumerate(value)]
    for item in value:
        _check_unicode(name, item)
    return value


def _from_json(name: str, kind: Any, value: Any) -> Any:
    kind_name = _kind_name(kind)
    if isinstance(kind, dict) and kind.get("logicalType") == "timestamp-millis":
        return _time(name, value)
    if kind_name == "bytes":
        return _vector(name, value)
    if kind_name in ("long", "int"):
        if isinstance(value, bool) or not isinstance(value, int) or not _LONG_MIN <= value <= _LONG_MAX:
            raise InvalidEventError("wrong_type", f"field {name!r} must be an integer of 64 bits", field=name)
        return value
    if kind_name == "array":
        return _array(name, kind["items"], value)
    if not isinstance(value, _JSON_TYPES.get(kind_name, object)):
        raise InvalidEventError("wrong_type", f"field {name!r} must be a {kind_name}", field=name)
    if isinstance(value, str):
        _check_unicode(name, value)
    return value


def _check_unicode(name: str, value: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidEventError("invalid_utf8", f"field {name!r} holds a lone surrogate", field=name) from error


def _time(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        if not _LONG_MIN <= value <= _LONG_MAX:
            raise InvalidEventError("not_a_time", f"field {name!r} must fit 64 bits", field=name)
        return value
    try:
        return ms_from_iso(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidEventError("not_a_time", f"field {name!r} must be an ISO 8601 time", field=name) from error


def _vector(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidEventError("wrong_type", f"field {name!r} is not base64", field=name) from error
    try:
        numbers = array("f", value)
    except (TypeError, OverflowError) as error:
        raise InvalidEventError("wrong_type", f"field {name!r} must be an array of numbers", field=name) from error
    if byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def event_to_json(topic: str, event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON form of a decoded event: times as ISO 8601, bytes as base64, other values unchanged."""
    fields = _fields(topic)
    document: dict[str, Any] = {}
    for name, value in event.items():
        kind = fields.get(name, ("",))[0]
        if isinstance(value, bytes):
            document[name] = base64.b64encode(value).decode()
        elif value is not None and isinstance(kind, dict) and kind.get("logicalType") == "timestamp-millis":
            document[name] = iso_or_number(value)
        else:
            document[name] = value
    return document
