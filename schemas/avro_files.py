"""The Avro files, read once: the only definition of every event."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from fastavro import parse_schema

_FOLDER = Path(__file__).parent / "avro"


def schema_text(name: str) -> str:
    """The Avro schema of `<subsystem>/<Event>.v1` as it is registered."""
    return (_FOLDER / f"{name}.avsc").read_text(encoding="utf-8")


def examples(name: str) -> list[dict[str, Any]]:
    """The examples kept beside a schema; an embedding is given as a list of numbers."""
    found: list[dict[str, Any]] = json.loads((_FOLDER / f"{name}.examples.json").read_text(encoding="utf-8"))
    return found


def schema_names() -> list[str]:
    """Every schema there is, sorted."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in _FOLDER.glob("*/*.avsc"))


@functools.cache
def parsed_schema(name: str) -> Any:
    """The schema ready for fastavro, times left as integers (milliseconds since 1970-01-01 UTC)."""
    return parse_for_reading(schema_text(name))


def parse_for_reading(text: str) -> Any:
    """Parse a schema and drop its logical types: a time stays the long it is, at a third of the cost of a datetime."""
    return parse_schema(_without_logical_types(json.loads(text)))


def _without_logical_types(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_logical_types(value) for key, value in node.items() if key != "logicalType"}
    if isinstance(node, list):
        return [_without_logical_types(item) for item in node]
    return node
