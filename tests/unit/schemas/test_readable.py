"""Which schemas are decoded, and what their data may hold."""

from __future__ import annotations

import json
import struct
import time
from typing import Any

import pytest

from highwater.schemas.avro_files import own_schema, schema_names, schema_text
from highwater.schemas.bounds import Bounds, bounds_of
from highwater.schemas.codec import Codec
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.json_events import event_from_json
from highwater.schemas.readable import VALUES_MAX, Reading, readable
from highwater.schemas.shapes import NESTING_MAX, TEXT_BYTES_MAX, UnsafeSchemaError, clean_schema
from highwater.schemas.topics import TOPICS
from tests.unit.schemas.any_schema import varint

ACTIVE = "feeds.user-active"
IDS = {name: number for number, name in enumerate(TOPICS, start=1)}


def record(name: str = "R", **fields: Any) -> dict[str, Any]:
    """A record of these fields."""
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}


def doubling(levels: int) -> dict[str, Any]:
    """R1 holds R0 twice, R2 holds R1 twice, …"""
    fields: dict[str, Any] = {"r0": record("R0", a="null")}
    for n in range(1, levels):
        fields[f"r{n}"] = record(f"R{n}", a=f"R{n - 1}", b=f"R{n - 1}")
    return record("Top", **fields)


def array(items: Any) -> dict[str, Any]:
    """An array."""
    return {"type": "array", "items": items}


def within(levels: int) -> Any:
    """Arrays within each other."""
    return "int" if levels == 0 else array(within(levels - 1))


EMPTY = {"type": "fixed", "name": "F", "size": 0}
REFUSED: dict[str, tuple[Any, str]] = {
    "an array of nulls": (array("null"), "items that take no bytes"),
    "an array of empty records": (array(record()), "items that take no bytes"),
    "an array of records of nulls": (array(record(a="null", b=record("S", c="null"))), "items that take no bytes"),
    "an array of a fixed type of no bytes": (array(EMPTY), "items that take no bytes"),
    "an array of nulls by a name": (record(a=record("S", n="null"), b=array("S")), "items that take no bytes"),
    "a map of arrays of nulls": ({"type": "map", "values": array("null")}, "items that take no bytes"),
    "an array of nulls in a union": (["null", array("null")], "items that take no bytes"),
    "a record in itself": (record(r="R"), "recursive"),
    "a record in itself, or not": (record(r=["null", "R"]), "recursive"),
    "a record in a list of itself": (record(r=array("R")), "recursive"),
    "two records in each other": (record(s=record("S", r=["null", "R"])), "recursive"),
    "records that double": (doubling(25), "more than 1,000 values"),
    "records that double beyond counting": (doubling(NESTING_MAX + 8), "nested deeper"),
    "many fields": (record(**{f"f{n}": "int" for n in range(1_000)}), "more than 1,000 values"),
    "many values a byte": (array(record(**{f"f{n}": "null" for n in range(16)}, b="boolean")), "values a byte"),
    "a long name for a byte": (array(record(**{"x" * 800: "boolean"})), "values a byte"),
    "types in types": (within(NESTING_MAX + 1), "nested deeper"),
    "a fixed type of a terabyte": ({"type": "fixed", "name": "F", "size": 2**40}, "a size that no event has"),
    "a fixed type of less than nothing": ({"type": "fixed", "name": "F", "size": -1}, "a size that no event has"),
    "a type that is nowhere": (record(a="Elsewhere"), "does not define"),
    "a name twice": (record(a=record("S"), b=record("S")), "twice"),
    "a field twice": ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2}, "twice"),
    "a union of nothing": (record(a=[]), "a union of nothing"),
    "a number for a type": (record(a=7), "is a int"),
    "a default that no JSON can say": (
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long", "default": 2**64}]},
        "beyond 64 bits",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_end_is_refused(name: str):
    """Each is refused with its reason, in milliseconds."""
    schema, why = REFUSED[name]
    begun = time.thread_time()
    with pytest.raises(UnsafeSchemaError, match=why) as caught:
        readable(json.dumps(schema))
    assert caught.value.reason == "unsafe_schema"
    assert time.thread_time() - begun < 0.5


@pytest.mark.parametrize(
    "text",
    [
        "[" * 30_000,
        "[" * 30_000 + '"null"' + "]" * 30_000,
        '{"type":' * 5_000 + '"int"' + "}" * 5_000,
        " " * TEXT_BYTES_MAX + '"int"',
        "not JSON",
        "",
        '{"type": "record", "name": "\\ud800", "fields": []}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "\\ud800"}]}',
    ],
    ids=["open brackets", "unions", "types of types", "long", "no JSON", "empty", "a lone surrogate", "and as a type"],
)
def test_texts_that_are_no_schema_are_refused(text: str):
    """A text is bounded in size and in depth before anything is made of it."""
    with pytest.raises(UnsafeSchemaError) as caught:
        readable(text)
    assert str(caught.value).encode()


def test_schemas_of_ours_are_far_within_the_bounds():
    """None holds more than 20 values from no bytes, nor more than 3 a byte."""
    found = [own_schema(name).bounds for name in schema_names()]
    assert len(found) >= 60
    assert max(one.from_nothing for one in found) <= 20
    assert max(one.per_byte for one in found) <= 3


def test_bounds_are_counted_by_hand():
    """An array has its item's values for each piece that the item is read in; a record adds up, a union takes the most."""
    for schema, expected in (
        ("long", Bounds(1, 0)),
        (array("long"), Bounds(1, 1)),
        (array(record(a="long", b="long")), Bounds(1, 1.5)),
        ({"type": "map", "values": "long"}, Bounds(1, 1)),
        (record(a="null", b=array("string"), c="int"), Bounds(4, 1)),
        (array(["null", record(a="null", b="null")]), Bounds(1, 3)),
        (array(array("long")), Bounds(1, 2)),
    ):
        assert expected == bounds_of(clean_schema(json.dumps(schema)).shape), schema


def test_a_reader_is_counted():
    """The reader's size of each record of its name counts for the writer's, with the size of its defaults."""
    wide = record("Item", a="boolean")
    wide["fields"].append({"name": "b", "type": array("int"), "default": list(range(40))})
    writer, reader = readable(json.dumps(array(record("Item", a="boolean")))), readable(json.dumps(array(wide)))
    assert writer.bounds.per_byte == 2
    with pytest.raises(UnsafeSchemaError, match="values a byte"):
        Reading(writer, reader)


def test_nothing_unknown_reaches_the_library():
    """The marks with which the library knows its own work are left out, and so are logical types and documentation."""
    schema = {"__fastavro_parsed": True, "__named_schemas": {"x.S": "R"}, "doc": "d", **record("x.R", a="S")}
    with pytest.raises(UnsafeSchemaError, match="does not define"):
        readable(json.dumps(schema))
    schema = {"__fastavro_parsed": True, "type": "record", "name": "R", "namespace": "x", "fields": [
        {"name": "a", "type": {"type": "bytes", "logicalType": "decimal", "precision": -3}, "doc": "d"}]}  # fmt: skip
    expected = {"type": "record", "name": "x.R", "fields": [{"name": "a", "type": "bytes"}]}
    assert expected == clean_schema(json.dumps(schema)).document


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (["null", "int"], b"\x01\x02"),
        (["null", "int"], b"\x04\x02"),
        ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, b"\x01"),
        ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, b"\x04"),
        ("string", b"\x01x"),
        ("bytes", varint(2**62)),
        ("bytes", varint(-(2**63))),
        (array("long"), varint(-(2**63)) + b"\x00"),
        (array("boolean"), varint(4 * 10**18) + b"\x01"),
        ({"type": "fixed", "name": "F", "size": 9_000_000}, b"x"),
        ("boolean", b""),
    ],
)
def test_numbers_that_nothing_has_are_refused(schema: Any, body: bytes):
    """A missing branch, symbol, length or count is `not_avro`, also one below 0."""
    with pytest.raises(InvalidEventError) as caught:
        Reading(readable(json.dumps(record(a=schema))), None).read(body, 0)
    assert caught.value.reason == "not_avro"


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "bytes", "logicalType": "decimal", "precision": 10**6, "scale": 10**6},
        {"type": "string", "logicalType": "uuid"},
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "int", "logicalType": "date"},
    ],
)
def test_logical_types_are_what_they_are_written_as(kind: Any):
    """No calendar, no decimal of a million places: the bytes, text or number that was written."""
    body = b"\x04\xff\xfe" if kind["type"] == "bytes" else b"\x04ab" if kind["type"] == "string" else varint(2**62)
    expected: Any = {"bytes": b"\xff\xfe", "string": "ab"}.get(kind["type"], 2**62)
    assert expected == Reading(readable(json.dumps(kind)), None).read(body, 0)


def test_a_refused_schema_is_remembered():
    """Each record that names it is refused by name, with the id, and the schema is parsed once."""
    codec = Codec(IDS)
    codec.teach(900, json.dumps(array("null")))
    for _ in range(3):
        with pytest.raises(InvalidEventError, match="schema 900 is not decoded") as caught:
            codec.decode(ACTIVE, struct.pack(">bI", 0, 900) + varint(4 * 10**18))
        assert caught.value.reason == "unsafe_schema"


def test_schemas_of_others_do_not_fill_the_memory():
    """When new schemas keep coming, the oldest are forgotten; those of the catalogue stay."""
    codec = Codec(IDS)
    for number in range(1_000, 1_200):
        symbols = [f"s{number}_{n}" for n in range(4_000)]
        codec.teach(number, json.dumps(record(a={"type": "enum", "name": "E", "symbols": symbols})))
    assert 20 < len(codec._known) - len(set(IDS.values())) < 120
    event = {"user_id": "ada", "ts": 1}
    assert event == codec.decode(ACTIVE, codec.encode(ACTIVE, event))


def test_the_schema_of_the_catalogue_cannot_be_taught_anew():
    """A registry that returns another text for one of our ids changes nothing."""
    codec = Codec(IDS)
    codec.teach(IDS[ACTIVE], json.dumps(array("null")))
    event = {"user_id": "ada", "ts": 1}
    assert event == codec.decode(ACTIVE, codec.encode(ACTIVE, event))


def test_a_foreign_version_with_such_a_field_is_refused():
    """A version of one of our schemas with an array of nulls, which a registry accepts, is not decoded."""
    later = json.loads(schema_text("feeds/UserActive.v1"))
    later["fields"].insert(0, {"name": "more", "type": array("null"), "default": []})
    codec = Codec(IDS)
    codec.teach(900, json.dumps(later))
    with pytest.raises(InvalidEventError) as caught:
        codec.decode(ACTIVE, struct.pack(">bI", 0, 900) + varint(4 * 10**18))
    assert caught.value.reason == "unsafe_schema"


def deep(levels: int) -> Any:
    """Lists in lists."""
    return [] if levels == 0 else [deep(levels - 1)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [(["c"] * (VALUES_MAX + 1), "too_many_values"), (deep(NESTING_MAX + 1), "too_deep"), ([{}], "wrong_type")],
)
def test_json_is_bounded_too(value: Any, reason: str):
    """A field of JSON has no more values, nor deeper ones, than a record of Avro."""
    with pytest.raises(InvalidEventError) as caught:
        event_from_json("feeds.subscriptions-replaced", {"user_id": "ada", "channels": value, "ts": 1})
    assert caught.value.reason == reason
