"""Logical types of Avro in JSON: decimals, dates, times; what is not allowed stays as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from highwater.connectors.kafka.foreign_values import ForeignValues
from highwater.schemas.exact_json import read_json
from highwater.schemas.logical_types import DECIMAL_BYTES_MAX, conversion_of
from highwater.schemas.shapes import clean_schema
from tests.unit.replay.making import encoded

AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
FIXED = {"type": "fixed", "name": "f.Tax", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}


def logical(kind: str, name: str) -> dict[str, Any]:
    """A type with a logical type."""
    return {"type": kind, "logicalType": name}


def shown(schema: Any, datum: Any) -> Any:
    """What a datum of a schema is shown as: read by the product, and written as JSON."""
    text = json.dumps(schema)
    values = ForeignValues(lambda _: text)
    raw = encoded(datum, text, 9)
    assert read_json(values.json(raw)) == values.value(raw)
    return values.value(raw)


@pytest.mark.parametrize(
    ("schema", "datum", "value"),
    [
        (AMOUNT, b"\x04\xd2", 12.34),
        (AMOUNT, b"\xff\xfb", -0.05),
        (AMOUNT, b"", 0),
        (FIXED, b"\xff\xff\xff\xfb", -0.05),
        ({**AMOUNT, "scale": 0}, b"\x04\xd2", 1234),
        (logical("int", "date"), 20_513, "2026-03-01"),
        (logical("int", "date"), 2**31 - 1, 2**31 - 1),
        (logical("int", "time-millis"), 43_200_001, "12:00:00.001"),
        (logical("int", "time-millis"), 86_400_000, 86_400_000),
        (logical("int", "time-millis"), -1, -1),
        (logical("long", "time-micros"), 1, "00:00:00.000001"),
        (logical("long", "timestamp-millis"), 1_000, "1970-01-01T00:00:01Z"),
        (logical("long", "timestamp-micros"), 1_500, "1970-01-01T00:00:00.001500Z"),
        (logical("long", "timestamp-micros"), 2**63 - 1, 2**63 - 1),
        (logical("long", "local-timestamp-millis"), 1_001, "1970-01-01T00:00:01.001"),
        # Not allowed by the specification, so no logical type.
        (logical("long", "date"), 5, 5),
        ({**AMOUNT, "scale": 10}, b"\1", "AQ=="),
        ({**AMOUNT, "precision": 0}, b"\1", "AQ=="),
        ({**AMOUNT, "precision": "9"}, b"\1", "AQ=="),
        # The number of branches of one kind decides; a plain branch is not converted.
        (["null", AMOUNT], b"\1", 0.01),
        (["null", AMOUNT], None, None),
        (["bytes", FIXED], b"\1\1\1\1", "AQEBAQ=="),
        (["long", logical("int", "date")], 5, 5),
        (["string", logical("int", "date")], "a", "a"),
        ({"type": "array", "items": AMOUNT}, [b"\1", b"\2"], [0.01, 0.02]),
        ({"type": "map", "values": ["null", AMOUNT]}, {"a": b"\1", "b": None}, {"a": 0.01, "b": None}),
    ],
)
def test_a_logical_type_is_shown_as_what_it_means(schema: Any, datum: Any, value: Any) -> None:
    """In every place where a type may stand; a value beyond its type stays as Avro has it."""
    assert shown(schema, datum) == value


def test_a_named_type_is_converted_wherever_its_name_stands() -> None:
    """The second field names the type of the first."""
    fields = [{"name": "tax", "type": FIXED}, {"name": "vat", "type": "f.Tax"}, {"name": "n", "type": "int"}]
    schema = {"type": "record", "name": "R", "fields": fields}
    assert shown(schema, {"tax": b"\0\0\0\1", "vat": b"\0\0\0\2", "n": 3}) == {"tax": 0.01, "vat": 0.02, "n": 3}


def test_every_digit_of_a_decimal_is_kept_up_to_a_limit() -> None:
    """308 digits are written out; more bytes are shown as bytes."""
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 308, "scale": 3}
    number = 10**307 + 1
    text = json.dumps(schema)
    values = ForeignValues(lambda _: text)
    raw = number.to_bytes(128, "big", signed=True)
    assert values.json(encoded(raw, text, 9)) == f"{str(number)[:-3]}.{str(number)[-3:]}"
    assert isinstance(shown(schema, b"\0" * (DECIMAL_BYTES_MAX + 1)), str)


def test_a_schema_without_logical_types_costs_nothing() -> None:
    """Its values are not looked through."""
    record = {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "long"]}]}
    assert conversion_of(clean_schema(json.dumps(record), keeps_logical_types=True).document) is None
