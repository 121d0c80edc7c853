"""Avro's logical types in the JSON of another application's values: decimals as numbers, dates and times as ISO 8601.

Source: Avro 1.12, "Logical Types". The Avro library's own conversions are not used: they round a decimal to its
precision, and fail for a date that no calendar has.

Invariant: nothing is guessed. A value that its type does not allow (a time of day beyond 24 hours), and one of a union
that has two branches of its kind, stays as Avro has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

# As many digits as a double has places after its point: conditions compare with doubles. 308 digits take 128 bytes.
# Writing out a number costs the square of its digits, and a value may have megabytes.
DECIMAL_DIGITS_MAX, DECIMAL_BYTES_MAX = 308, 128

Conversion = Callable[[Any], Any]

_DAY, _EPOCH = timedelta(days=1), datetime(1970, 1, 1)  # noqa: DTZ001 - the text gets its Z, or none for a local time
_MICROSECONDS = {"millis": 1_000, "micros": 1}
# What Python has for the values of a type.
_PYTHON_TYPES: Mapping[str, type] = {
    "null": type(None), "boolean": bool, "int": int, "long": int, "float": float, "double": float, "bytes": bytes,
    "fixed": bytes, "string": str, "enum": str, "array": list, "map": dict, "record": dict,
}  # fmt: skip


def decimal_of(scale: int, raw: Any) -> Any:
    """Return the number of an Avro decimal, or its bytes if these are more than `DECIMAL_BYTES_MAX`."""
    if len(raw) > DECIMAL_BYTES_MAX:
        return raw
    number = int.from_bytes(raw, "big", signed=True)
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def decimal_size(node: Any) -> tuple[int, int] | None:
    """Return precision and scale of a type that is a decimal; None for others."""
    if not isinstance(node, dict) or node.get("logicalType") != "decimal" or node["type"] not in ("bytes", "fixed"):
        return None
    precision, scale = node.get("precision"), node.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
        return None  # the specification: an invalid logical type is ignored
    if not 1 <= precision <= DECIMAL_DIGITS_MAX:
        return None
    return precision, scale


def conversion_of(document: Any) -> Conversion | None:
    """Return what puts texts and numbers in place of a schema's logical types; None if it has none.

    `document` is a schema's clean form with its logical types (`shapes.clean_schema`).
    """
    return _Types().conversion(document)


class _Types:
    """The types of one schema, by their full names."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[type, Conversion | None]] = {}

    def conversion(self, node: Any) -> Conversion | None:
        return self._read(node)[1]

    def _read(self, node: Any) -> tuple[type, Conversion | None]:
        """Return the Python type of the values of a type, and how they are converted."""
        if isinstance(node, list):
            return object, self._of_union(node)
        if isinstance(node, str):
            return self._named[node] if node in self._named else (_PYTHON_TYPES[node], None)
        found = _PYTHON_TYPES[node["type"]], self._of_type(node)
        if "name" in node:
            self._named[node["name"]] = found
        return found

    def _of_type(self, node: dict[str, Any]) -> Conversion | None:
        if node["type"] == "record":
            fields = {one["name"]: self.conversion(one["type"]) for one in node["fields"]}
            converted = {name: convert for name, convert in fields.items() if convert is not None}
            return partial(_record, converted) if converted else None
        if node["type"] in ("array", "map"):
            inner = self.conversion(node["items" if node["type"] == "array" else "values"])
            of_each = _array if node["type"] == "array" else _map
            return None if inner is None else partial(of_each, inner)
        size = decimal_size(node)
        return _of_number(node) if size is None else partial(decimal_of, size[1])

    def _of_union(self, branches: list[Any]) -> Conversion | None:
        by_type: dict[type, list[Conversion | None]] = {}
        for kind, convert in map(self._read, branches):
            by_type.setdefault(kind, []).append(convert)
        only = {kind: found[0] for kind, found in by_type.items() if len(found) == 1 and found[0] is not None}
        return partial(_branch, only) if only else None


def _of_number(node: dict[str, Any]) -> Conversion | None:
    """Return how the numbers of a date or a time are converted; None for other numbers."""
    name, is_long = str(node.get("logicalType")), node["type"] == "long"
    if name == "date" and node["type"] == "int":
        return _date
    kind, _, unit = name.rpartition("-")
    if unit not in _MICROSECONDS:
        return None
    if kind == "time" and is_long == (unit == "micros"):
        return partial(_time, _MICROSECONDS[unit])
    if kind in ("timestamp", "local-timestamp") and is_long:
        return partial(_moment, _MICROSECONDS[unit], "Z" if kind == "timestamp" else "")
    return None


def _record(fields: Mapping[str, Conversion], value: dict[str, Any]) -> dict[str, Any]:
    return {**value, **{name: convert(value[name]) for name, convert in fields.items()}}


def _array(convert: Conversion, value: list[Any]) -> list[Any]:
    return list(map(convert, value))


def _map(convert: Conversion, value: dict[str, Any]) -> dict[str, Any]:
    return {key: convert(one) for key, one in value.items()}


def _branch(by_type: Mapping[type, Conversion], value: Any) -> Any:
    convert = by_type.get(type(value))
    return value if convert is None else convert(value)


def _date(days: int) -> str | int:
    try:
        return (date(1970, 1, 1) + days * _DAY).isoformat()
    except OverflowError:
        return days


def _time(unit: int, count: int) -> str | int:
    after_midnight = timedelta(microseconds=count * unit)
    return _shown((_EPOCH + after_midnight).time()) if timedelta(0) <= after_midnight < _DAY else count


def _moment(unit: int, zone: str, count: int) -> str | int:
    try:
        return _shown(_EPOCH + timedelta(microseconds=count * unit)) + zone
    except OverflowError:
        return count


def _shown(moment: datetime | time) -> str:
    """Return a time in as many digits as it has: seconds, milliseconds or microseconds."""
    return moment.isoformat(timespec="milliseconds" if moment.microsecond % 1_000 == 0 < moment.microsecond else "auto")
