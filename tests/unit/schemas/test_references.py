"""A schema that refers to schemas of other subjects is read as one."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer

from highwater.schemas.readable import Reading, readable
from highwater.schemas.references import with_references
from highwater.schemas.shapes import UnsafeSchemaError

CITY = {"type": "record", "name": "City", "namespace": "shop", "fields": [{"name": "name", "type": "string"}]}
ADDRESS = {
    "type": "record",
    "name": "shop.Address",
    "fields": [{"name": "city", "type": "City"}, {"name": "others", "type": {"type": "array", "items": "shop.City"}}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "to", "type": ["null", "Address"]},
        {"name": "home", "type": "shop.City"},
        {"name": "by", "type": {"type": "map", "values": "Kind"}},
    ],
}


def dumped(**schemas: Any) -> dict[str, str]:
    """Schemas as the registry has them, by name; `__` stands for the dot."""
    return {name.replace("__", "."): json.dumps(one) for name, one in schemas.items()}


def test_definitions_are_put_at_the_first_use_of_a_name():
    """A record written with all schemas is read with the one, and references of references are followed."""
    text = with_references(json.dumps(ORDER), dumped(shop__City=CITY, shop__Address=ADDRESS))
    named: dict[str, Any] = {}
    parse_schema(CITY, named)
    parse_schema(ADDRESS, named)
    lund, malmo = {"name": "Lund"}, {"name": "Malmö"}
    order = {"kind": "NEW", "to": {"city": lund, "others": [malmo]}, "home": malmo, "by": {"x": "OLD"}}
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(ORDER, named), order)
    assert Reading(readable(text), None).read(out.getvalue(), 0) == order
    assert (text.count('"name":"City"'), text.count('"shop.City"')) == (1, 2)


def test_without_references_nothing_changes():
    """Not a byte."""
    text = json.dumps(CITY, indent=3)
    assert with_references(text, {}) is text


@pytest.mark.parametrize("bad", ["{", "[" * 100_000])
def test_what_is_not_json_is_refused(bad: str):
    """One clear error, as of any schema that is not read."""
    with pytest.raises(UnsafeSchemaError):
        with_references(json.dumps(ORDER), {"shop.City": bad})


def test_schemas_that_refer_to_each_other_are_refused_as_recursive():
    """As one that refers to itself."""
    there = {"type": "record", "name": "A", "fields": [{"name": "b", "type": "B"}]}
    back = {"type": "record", "name": "B", "fields": [{"name": "a", "type": "A"}]}
    with pytest.raises(UnsafeSchemaError):
        readable(with_references(json.dumps(there), dumped(A=there, B=back)))
