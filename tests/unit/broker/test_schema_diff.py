"""The differences between two versions of a schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from highwater.api.broker.schema_diff import FieldChange, changed_fields, changed_lines, formatted, type_name


def record(*fields: dict[str, Any], name: str = "Order") -> dict[str, Any]:
    """An Avro record."""
    return {"type": "record", "name": name, "fields": list(fields)}


TEXT = {"name": "text", "type": "string"}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}


def test_fields_that_differ() -> None:
    """One that is added, one that is removed, and one with another type; one that is the same is left out."""
    old = record(TEXT, {"name": "count", "type": "int"}, {"name": "gone", "type": "boolean"})
    new = record(TEXT, {"name": "count", "type": "long"}, NOTE)
    assert changed_fields(json.dumps(old), json.dumps(new)) == [
        FieldChange("changed", "count", "int", "long"),
        FieldChange("removed", "gone", "boolean", None),
        FieldChange("added", "note", None, "string or null, default null"),
    ]


def test_fields_of_records_within() -> None:
    """In a union and in an array, by their path; a default that changes is a change."""
    line = record({"name": "price", "type": "long", "default": 0}, name="Line")
    dearer = record({"name": "price", "type": "long", "default": 1}, name="Line")
    old, new = (
        record({"name": "lines", "type": ["null", {"type": "array", "items": one}], "default": None})
        for one in (line, dearer)
    )
    assert changed_fields(json.dumps(old), json.dumps(new)) == [
        FieldChange("changed", "lines.price", "long, default 0", "long, default 1")
    ]


def test_a_schema_of_another_kind_is_compared_by_lines() -> None:
    """Protobuf is not JSON and does not have the fields of Avro."""
    old, new = 'syntax = "proto3";\nmessage A {}', 'syntax = "proto3";\nmessage B {}'
    assert changed_fields(old, new) == []
    assert [line for line in changed_lines(old, new) if line[0] in "+-"] == ["-message A {}", "+message B {}"]
    assert formatted(old) == old


def test_lines_are_those_of_the_formatted_text() -> None:
    """How a schema was written does not count."""
    one = record(TEXT)
    assert changed_lines(json.dumps(one), json.dumps(one, indent=7)) == []
    assert '+      "name": "note",' in changed_lines(json.dumps(one), json.dumps(record(TEXT, NOTE)))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (["null", "string"], "string or null"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp-millis"),
        ({"type": "array", "items": "string"}, "array of string"),
        ({"type": "map", "values": ["null", "int"]}, "map of int or null"),
        ({"type": "enum", "name": "Size", "symbols": ["S", "L"]}, "enum Size (S, L)"),
        ({"type": "fixed", "name": "Hash", "size": 16}, "fixed Hash"),
        (record(name="Line"), "record Line"),
        ({"type": "string"}, "string"),
    ],
)
def test_types_in_words(kind: Any, words: str) -> None:
    """As people say them."""
    assert type_name(kind) == words


def test_a_schema_that_holds_itself_ends() -> None:
    """By name, so that there is nothing more to walk into."""
    node = record({"name": "next", "type": ["null", "Order"], "default": None})
    assert changed_fields(json.dumps(node), json.dumps(node)) == []
