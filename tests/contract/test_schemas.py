"""The Avro files: each has examples that fit, times in milliseconds, and typed records that are up to date."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from fastavro.validation import validate

from highwater.schemas.avro_files import examples, parsed_schema, schema_names, schema_text
from tests import ROOT


def nodes(node: Any) -> list[dict[str, Any]]:
    """Every object in a schema."""
    if isinstance(node, list):
        return [found for item in node for found in nodes(item)]
    if isinstance(node, dict):
        return [node, *(found for value in node.values() for found in nodes(value))]
    return []


@pytest.mark.parametrize("name", schema_names())
def test_a_schema_has_examples_that_fit(name: str):
    """At least one example stands beside a schema, names every field, and is valid."""
    fields = {field["name"] for field in json.loads(schema_text(name))["fields"]}
    assert examples(name)
    for example in examples(name):
        assert fields == set(example)
        assert validate(example, parsed_schema(name), strict=True)


@pytest.mark.parametrize("name", schema_names())
def test_a_schema_says_what_its_fields_are(name: str):
    """The record and each field carry a doc; the record is named as its file, in its subsystem's namespace."""
    schema = json.loads(schema_text(name))
    subsystem, event = name.removesuffix(".v1").split("/")
    assert (event, f"highwater.{subsystem}") == (schema["name"], schema["namespace"])
    assert schema["doc"]
    assert [field["name"] for field in schema["fields"] if not field.get("doc")] == []


@pytest.mark.parametrize("name", schema_names())
def test_times_are_timestamp_millis(name: str):
    """`ts` and every name that ends in `_at` are `timestamp-millis`; no other logical type is used."""
    for node in nodes(json.loads(schema_text(name))):
        if node.get("name", "").endswith("_at") or node.get("name") in {"ts", "now", "dirty_since"}:
            assert "timestamp-millis" in json.dumps(node["type"]), node["name"]
        if isinstance(node.get("logicalType"), str):
            assert (node["type"], node["logicalType"]) == ("long", "timestamp-millis")


@pytest.mark.parametrize("name", schema_names())
def test_an_optional_field_defaults_to_nothing(name: str):
    """Every union is `null` and one type, null first with null as default: FULL_TRANSITIVE lets it come and go."""
    for field in json.loads(schema_text(name))["fields"]:
        if isinstance(field["type"], list):
            assert (field["type"][0], len(field["type"]), field["default"]) == ("null", 2, None)


def test_typed_records_are_up_to_date():
    """`python -m highwater.schemas.generate --check` finds nothing to write."""
    command = [sys.executable, "-m", "highwater.schemas.generate", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
