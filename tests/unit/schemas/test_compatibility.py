"""Why a schema is not compatible: each rule of Avro's schema resolution, by its name, at its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from highwater.schemas.avro_files import schema_text
from highwater.schemas.compatibility import REASONS_MAX, incompatibilities, unreadable
from highwater.schemas.topics import TOPICS


def record(*fields: dict[str, Any], name: str = "Order", **more: Any) -> str:
    """A record with these fields."""
    return json.dumps({"type": "record", "name": name, "fields": list(fields), **more})


def field(kind: Any, name: str = "x", **more: Any) -> dict[str, Any]:
    """A field."""
    return {"name": name, "type": kind, **more}


COLOR = {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}
FOUR = {"type": "fixed", "name": "Four", "size": 4}
RED = {**COLOR, "symbols": ["RED"]}
NODE = {"type": "record", "name": "Node", "fields": [field("int", "value"), field(["null", "Node"], "next")]}
LONG_NODE = {**NODE, "fields": [field("string", "value"), field(["null", "Node"], "next")]}


@pytest.mark.parametrize(
    ("reader", "writer", "rule"),
    [
        (field("int"), field("int"), None),
        (field("long"), field("int"), None),
        (field("int"), field("long"), "TYPE_MISMATCH"),
        (field(["null", "int"]), field("int"), None),
        (field("int"), field(["null", "int"]), "TYPE_MISMATCH"),
        (field(["null", "string"]), field("int"), "MISSING_UNION_BRANCH"),
        (field(["null", "int"]), field(["int", "null"]), None),
        (field(COLOR), field(RED), None),
        (field(RED), field(COLOR), "MISSING_ENUM_SYMBOLS"),
        (field({**RED, "default": "RED"}), field(COLOR), None),
        (field({**COLOR, "name": "Other"}), field(COLOR), "NAME_MISMATCH"),
        (field({**COLOR, "name": "Other", "aliases": ["Color"]}), field({**COLOR, "namespace": "n"}), None),
        (field({**FOUR, "size": 8}), field(FOUR), "FIXED_SIZE_MISMATCH"),
        (field({"type": "array", "items": "int"}), field({"type": "array", "items": "string"}), "TYPE_MISMATCH"),
        (field({"type": "map", "values": "int"}), field({"type": "array", "items": "int"}), "TYPE_MISMATCH"),
        (field({"type": "long", "logicalType": "timestamp-millis"}), field({"type": "int"}), None),
        (field("int", "y"), field("int"), "READER_FIELD_MISSING_DEFAULT_VALUE"),
        (field("int", "y", default=1), field("int"), None),
        (field("int", "y", aliases=["x"]), field("int"), None),
        (field(NODE), field(NODE), None),
        (field(LONG_NODE), field(NODE), "TYPE_MISMATCH"),
    ],
)  # fmt: skip
def test_each_rule_is_named(reader: dict[str, Any], writer: dict[str, Any], rule: str | None) -> None:
    """Types that are promoted, aliases and defaults break none."""
    assert [one.rule for one in unreadable(reader=record(reader), writer=record(writer))] == ([rule] if rule else [])


def test_the_place_is_a_path() -> None:
    """Through records, arrays and unions."""
    inner = [{"type": "record", "name": "Line", "fields": [field("int", "count")]} for _ in range(2)]
    inner[0]["fields"] = [field("string", "count")]
    lines = [record(field({"type": "array", "items": one}, "lines")) for one in inner]
    (reason,) = unreadable(reader=lines[0], writer=lines[1])
    assert reason.text == "field lines.items.count: the reader has string, the writer int (TYPE_MISMATCH)"


def test_the_level_says_which_versions_and_which_direction() -> None:
    """The last version or all, to be read by the new one, to read it, or both."""
    text, count, size = field("string", "text"), field("int", "count"), field("int", "size", default=0)
    versions = [(1, record(text, count)), (2, record(text, size))]
    new = record(field("bytes", "text"), field("int", "other"))
    lost = "version 1 cannot read it: field count: the reader has it without a default, and the writer does not have it"
    backward = "cannot read version {}: field other"
    for level, begin in (("BACKWARD", [2]), ("BACKWARD_TRANSITIVE", [2, 1])):
        found = incompatibilities(new, versions, level)
        assert [backward.format(number) in one for number, one in zip(begin, found, strict=True)] == [True] * len(begin)
    assert incompatibilities(new, versions, "FORWARD") == []
    assert [one.startswith(lost) for one in incompatibilities(new, versions, "FORWARD_TRANSITIVE")] == [True]
    assert len(incompatibilities(new, versions, "FULL_TRANSITIVE")) == 3
    assert incompatibilities(new, versions, "NONE") == []
    many = record(*(field("int", f"f{number}") for number in range(50)))
    assert len(incompatibilities(many, versions, "BACKWARD")) == REASONS_MAX


def test_what_is_no_schema_has_no_reasons() -> None:
    """The registry refuses it by itself."""
    for text in ("{", "{}", '{"type": "record", "name": "Order"}', '{"type": "array"}'):
        assert unreadable(reader=text, writer=record(field("int"))) == unreadable(reader="{", writer=text) == []


def test_schemas_of_the_catalogue_read_themselves() -> None:
    """This holds for each of them."""
    for topic in TOPICS.values():
        text = schema_text(topic.schema)
        assert incompatibilities(text, [(1, text)], "FULL_TRANSITIVE") == []
