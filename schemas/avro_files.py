"""The Avro files, read once: the only definition of every event."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from highwater.schemas.readable import Readable, parsed_for_writing, readable

_FOLDER = Path(__file__).parent / "avro"


def schema_text(name: str) -> str:
    """Return the Avro schema of `<subsystem>/<Event>.v1` as it is registered."""
    return (_FOLDER / f"{name}.avsc").read_text(encoding="utf-8")


def examples(name: str) -> list[dict[str, Any]]:
    """Return the examples stored beside a schema; an embedding is a list of numbers."""
    found: list[dict[str, Any]] = json.loads((_FOLDER / f"{name}.examples.json").read_text(encoding="utf-8"))
    return found


def schema_names() -> list[str]:
    """Return every schema, sorted."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in _FOLDER.glob("*/*.avsc"))


@functools.cache
def own_schema(name: str) -> Readable:
    """Return the schema for reading."""
    return readable(schema_text(name))


@functools.cache
def parsed_schema(name: str) -> Any:
    """Return the schema for writing, times left as integers (milliseconds since 1970-01-01 UTC)."""
    return parsed_for_writing(schema_text(name))
