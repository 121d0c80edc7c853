"""Compares two versions of a schema: fields for people, and lines of the formatted text.

Invariant: pure functions of the two texts. Fields are compared for Avro records, at any depth; other schemas only by
lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from highwater.streams.line_diff import unified

Kind: TypeAlias = Literal["added", "removed", "changed"]
_CONTEXT_LINES = 3
# Deeper records are compared only by lines: a schema may be recursive.
_DEPTH_MAX = 16


class FieldChange(NamedTuple):
    """A field that only one version has, or whose type or default differs."""

    kind: Kind
    field: str
    before: str | None
    after: str | None


def formatted(text: str) -> str:
    """Format a schema for people; a text that is not JSON, such as Protobuf, is unchanged."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


def changed_lines(before: str, after: str) -> list[str]:
    """Return a unified diff of the formatted texts, without its two header lines."""
    old, new = formatted(before).splitlines(), formatted(after).splitlines()
    return unified(old, new, _CONTEXT_LINES)


def changed_fields(before: str, after: str) -> list[FieldChange]:
    """Return the fields that differ, by path; none if a text is not an Avro record."""
    old, new = _fields(before), _fields(after)
    found = []
    for path in sorted(old.keys() | new.keys()):
        was, now = old.get(path), new.get(path)
        if was != now:
            kind: Kind = "added" if was is None else "removed" if now is None else "changed"
            found.append(FieldChange(kind, path, was, now))
    return found


def _fields(text: str) -> dict[str, str]:
    try:
        schema = json.loads(text)
    except ValueError:
        return {}
    return dict(_paths(schema, "", 0))


def _paths(schema: Any, within: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield the path of each field of a record and its nested records, with type and default."""
    if isinstance(schema, list):
        for part in schema:
            yield from _paths(part, within, depth)
    if not isinstance(schema, dict) or depth > _DEPTH_MAX:
        return
    if schema.get("type") == "record" and isinstance(schema.get("fields"), list):
        for field in schema["fields"]:
            path = f"{within}{field['name']}"
            yield path, _declared(field)
            yield from _paths(field["type"], f"{path}.", depth + 1)
        return
    for name in ("type", "items", "values"):
        yield from _paths(schema.get(name), within, depth + 1)


def _declared(field: Mapping[str, Any]) -> str:
    default = f", default {json.dumps(field['default'], ensure_ascii=False)}" if "default" in field else ""
    return type_name(field["type"]) + default


def type_name(kind: Any) -> str:
    """Describe an Avro type in words: `string or null`, `array of string`, `timestamp-millis`; a record by its name."""
    if isinstance(kind, list):
        return " or ".join(type_name(one) for one in sorted(kind, key=lambda one: one == "null"))
    if not isinstance(kind, dict):
        return str(kind)
    if kind.get("type") in ("record", "fixed"):
        return f"{kind['type']} {kind['name']}"
    match kind.get("type"):
        case "array":
            words = f"array of {type_name(kind['items'])}"
        case "map":
            words = f"map of {type_name(kind['values'])}"
        case "enum":
            words = f"enum {kind['name']} ({', '.join(map(str, kind['symbols']))})"
        case inner:
            words = str(kind.get("logicalType") or type_name(inner))
    return words
