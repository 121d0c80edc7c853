"""Explains why one Avro schema cannot read what another wrote: the place, the rule, and the violation.

Invariant: pure. The rules and their names are those of Avro 1.12 ("Schema Resolution") and of Confluent's
`?verbose=true`, so that the explanation for a registry that answers only yes or no is in the same words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The number types that a reader accepts from a writer with another number type.
_PROMOTED = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_NAMED = frozenset({"record", "error", "enum", "fixed"})
# No human-written schema has deeper types.
_DEPTH_MAX = 64
# The first of many reasons are enough.
REASONS_MAX = 20

Names = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Reason:
    """One violated rule: at which field (a path of names, empty for the whole), and how."""

    rule: str
    place: str
    detail: str

    @property
    def text(self) -> str:
        """Return it as text for people."""
        return f"{f'field {self.place}: ' if self.place else ''}{self.detail} ({self.rule})"


def incompatibilities(new: str, versions: Sequence[tuple[int, str]], level: str) -> list[str]:
    """Return why a schema may not be the next version under a compatibility level; empty if no rule is violated.

    Args:
        new: the text of the schema, in Avro's JSON.
        versions: the numbers and texts of the versions, oldest first.
        level: `BACKWARD`, `FORWARD` or `FULL`, each also as `…_TRANSITIVE`; other levels have no rules.
    """
    asked = list(versions) if level.endswith("_TRANSITIVE") else list(versions)[-1:]
    direction = level.removesuffix("_TRANSITIVE")
    found: list[str] = []
    for number, text in reversed(asked):
        if direction in ("BACKWARD", "FULL"):
            found += [f"it cannot read version {number}: {one.text}" for one in unreadable(reader=new, writer=text)]
        if direction in ("FORWARD", "FULL"):
            found += [f"version {number} cannot read it: {one.text}" for one in unreadable(reader=text, writer=new)]
    return list(dict.fromkeys(found))[:REASONS_MAX]


def unreadable(*, reader: str, writer: str) -> list[Reason]:
    """Return why the reader's schema cannot read what the writer's wrote; none for a text that is not a schema."""
    try:
        read, written = json.loads(reader), json.loads(writer)
        pair = _Pair(dict(_definitions(read)), dict(_definitions(written)))
        return list(pair.reasons(read, written, "", 0))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []


def _definitions(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield named types by their names without the namespace: one schema seldom has two with one name."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _definitions(branch)
    elif isinstance(schema, Mapping):
        kind = schema["type"]
        if kind in _NAMED:
            yield _simple(schema["name"]), schema
            for one in schema.get("fields", ()):
                yield from _definitions(one["type"])
        elif kind in ("array", "map"):
            yield from _definitions(schema["items" if kind == "array" else "values"])
        elif not isinstance(kind, str):
            yield from _definitions(kind)


def _simple(name: object) -> str:
    return str(name).rpartition(".")[2]


class _Pair:
    """Two schemas with their named types; pairs in comparison, as in recursive types, count as equal."""

    def __init__(self, read: Names, written: Names) -> None:
        self._read = read
        self._written = written
        self._open: set[tuple[str, str]] = set()

    def reasons(self, read: Any, written: Any, place: str, depth: int) -> Iterator[Reason]:
        if depth > _DEPTH_MAX:
            return
        read, written = _resolved(read, self._read), _resolved(written, self._written)
        if isinstance(written, list):
            for branch in written:
                yield from self._branch(read, branch, place, depth)
        elif isinstance(read, list):
            yield from self._branch(read, written, place, depth)
        else:
            yield from self._plain(read, written, place, depth)

    def _branch(self, read: Any, written: Any, place: str, depth: int) -> Iterator[Reason]:
        """Compare a branch of the writer's union, or its one type, with the reader's type."""
        if not isinstance(read, list):
            yield from self.reasons(read, written, place, depth + 1)
        elif not any(not list(self.reasons(one, written, place, depth + 1)) for one in read):
            shown = _kind(_resolved(written, self._written))
            yield Reason("MISSING_UNION_BRANCH", place, f"the reader's union has no branch for {shown}")

    def _plain(self, read: Any, written: Any, place: str, depth: int) -> Iterator[Reason]:
        kind, other = _kind(read), _kind(written)
        if kind != other:
            if other not in _PROMOTED.get(kind, ()):
                yield Reason("TYPE_MISMATCH", place, f"the reader has {kind}, the writer {other}")
        elif kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            yield from self.reasons(read[inner], written[inner], f"{place}.{inner}".strip("."), depth + 1)
        elif kind in _NAMED:
            yield from self._named(kind, read, written, place, depth)

    def _named(self, kind: str, read: Any, written: Any, place: str, depth: int) -> Iterator[Reason]:
        names = [_simple(one["name"]) for one in (read, written)]
        aliases = {_simple(one) for one in read.get("aliases", ())}
        if names[0] != names[1] and names[1] not in aliases:
            yield Reason("NAME_MISMATCH", place, f"the reader has {kind} {names[0]}, the writer {kind} {names[1]}")
        elif kind == "fixed" and read["size"] != written["size"]:
            detail = f"the reader has {read['size']} bytes, the writer {written['size']}"
            yield Reason("FIXED_SIZE_MISMATCH", place, detail)
        elif kind == "enum":
            missing = [one for one in written["symbols"] if one not in read["symbols"]]
            if missing and "default" not in read:
                yield Reason("MISSING_ENUM_SYMBOLS", place, f"the reader has no {', '.join(map(str, missing))}")
        elif kind in ("record", "error"):
            yield from self._fields(read, written, place, depth)

    def _fields(self, read: Any, written: Any, place: str, depth: int) -> Iterator[Reason]:
        pair = (_simple(read["name"]), _simple(written["name"]))
        if pair in self._open:
            return
        self._open.add(pair)
        there = {one["name"]: one for one in written["fields"]}
        for one in read["fields"]:
            name = f"{place}.{one['name']}".strip(".")
            other = next((there[each] for each in (one["name"], *one.get("aliases", ())) if each in there), None)
            if other is not None:
                yield from self.reasons(one["type"], other["type"], name, depth + 1)
            elif "default" not in one:
                detail = "the reader has it without a default, and the writer does not have it"
                yield Reason("READER_FIELD_MISSING_DEFAULT_VALUE", name, detail)
        self._open.discard(pair)


def _resolved(schema: Any, names: Names) -> Any:
    """Return a type without logical-type wrappers, and a name as the type it refers to."""
    while isinstance(schema, Mapping) and not isinstance(schema["type"], str):
        schema = schema["type"]
    named = schema if isinstance(schema, str) else schema["type"] if isinstance(schema, Mapping) else ""
    return names.get(_simple(named), schema)


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    return str(schema["type"]) if isinstance(schema, Mapping) else str(schema)
