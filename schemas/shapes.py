"""The shape of a writer's schema, read from its text without the Avro library.

Invariant: the Avro library sees only what this module wrote. It trusts a schema (a recursive one ends the process, and
so do twenty thousand nested unions; a property with one of its internal names is taken for its own work), so a foreign
schema is read here first, with limited text and nesting, and passed on with only the properties that the specification
defines (Avro 1.12, "Schema").
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from highwater.schemas.errors import InvalidEventError

# Our largest schema has 3 KiB; a hundred fields with a sentence each are 20.
TEXT_BYTES_MAX = 64 * 1024
# Levels of nested types, by name or in place; ours have 5. The library uses one more call for each.
NESTING_MAX = 32
# The largest event; a fixed type with more bytes cannot occur.
FIXED_BYTES_MAX = 9 * 1024 * 1024

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
# The properties of a logical type.
_LOGICAL = ("logicalType", "precision", "scale")
_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


class UnsafeSchemaError(InvalidEventError):
    """A record was written under a schema that is not decoded. It is dead-lettered; the producer writes another schema."""

    def __init__(self, message: str) -> None:
        # A name may contain a lone surrogate, which no header and no log accepts.
        super().__init__("unsafe_schema", message.encode("utf-8", "backslashreplace").decode())


class Kind(StrEnum):
    """The kind of a type for counting its values."""

    NULL = "null"
    PLAIN = "plain"
    ENUM = "enum"
    FIXED = "fixed"
    ARRAY = "array"
    MAP = "map"
    UNION = "union"
    RECORD = "record"


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A field of a record. `default_weight` is None without a default."""

    name: str
    shape: Shape
    aliases: tuple[str, ...] = ()
    default_weight: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A type. One that is used by name in several places is one object, so that it is counted once.

    `reads` is the minimum number of pieces of at least a byte in which a datum is read; 0 means that it takes no byte.
    `parts` are the types of items, values or branches; those of a record are in `fields`.
    """

    kind: Kind
    reads: int
    nesting: int = 1
    parts: tuple[Shape, ...] = ()
    fields: tuple[Field, ...] = ()
    name: str = ""
    aliases: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CleanSchema:
    """A schema with its shape, and its form for the Avro library: full names, no logical types, no unknown property."""

    shape: Shape
    document: Any


def clean_schema(text: str, *, keeps_logical_types: bool = False) -> CleanSchema:
    """Read a schema's text. `keeps_logical_types` keeps them in the clean form, for code that shows what they mean.

    Raises:
        UnsafeSchemaError: it is too large, too deep, recursive, or not an Avro schema.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > TEXT_BYTES_MAX:
        raise UnsafeSchemaError(f"the schema's text has {size:,} bytes; up to {TEXT_BYTES_MAX:,} are read")
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise UnsafeSchemaError(f"the schema is nested deeper than {NESTING_MAX} levels") from error
    except ValueError as error:
        raise UnsafeSchemaError(f"the schema is not JSON: {error}") from error
    shape, clean = _Reader(keeps_logical_types=keeps_logical_types).read(document, "", 1)
    try:
        json.dumps(clean, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UnsafeSchemaError("the schema holds a lone surrogate") from error
    return CleanSchema(shape, clean)


def characters_weight(text: str) -> int:
    """Return how many values a name or a text counts for: JSON repeats it with every value."""
    return len(text) // 32


class _Reader:
    """Reads one schema; remembers the types named so far."""

    def __init__(self, *, keeps_logical_types: bool) -> None:
        self._kept = _LOGICAL if keeps_logical_types else ()
        self._named: dict[str, Shape] = {}
        self._open: set[str] = set()

    def read(self, node: Any, namespace: str, level: int) -> tuple[Shape, Any]:
        """Return the type in a JSON node, and its clean form."""
        if level > NESTING_MAX:
            raise UnsafeSchemaError(f"the schema is nested deeper than {NESTING_MAX} levels")
        if isinstance(node, str):
            return self._by_name(node, namespace)
        if isinstance(node, list):
            return self._union(node, namespace, level)
        if not isinstance(node, dict):
            raise UnsafeSchemaError(f"a type of the schema is a {type(node).__name__}")
        kind = node.get("type")
        if not isinstance(kind, str):  # {"type": {"type": "array", …}}
            return self.read(kind, namespace, level + 1)
        if kind in ("array", "map"):
            return self._of_items(node, kind, namespace, level)
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(node, kind, namespace, level)
        shape, clean = self._by_name(kind, namespace)
        logical = self._logical(node) if kind in _PRIMITIVES else {}
        return shape, {"type": kind, **logical} if logical else clean

    def _logical(self, node: dict[str, Any]) -> dict[str, Any]:
        """Return the properties of a node's logical type that are kept."""
        return {name: node[name] for name in self._kept if name in node} if "logicalType" in node else {}

    def _by_name(self, name: str, namespace: str) -> tuple[Shape, Any]:
        if name in _PRIMITIVES:
            return (_NULL if name == "null" else _PLAIN), name
        full = f"{namespace}.{name}" if namespace and "." not in name else name
        if full in self._open:
            raise UnsafeSchemaError(f"the schema is recursive: {full[:100]} holds itself")
        shape = self._named.get(full)
        if shape is None:
            raise UnsafeSchemaError(f"the schema names a type that it does not define: {full[:100]}")
        return shape, full

    def _union(self, node: list[Any], namespace: str, level: int) -> tuple[Shape, Any]:
        if not node:
            raise UnsafeSchemaError("the schema has a union of nothing")
        found = [self.read(branch, namespace, level + 1) for branch in node]
        shapes = tuple(shape for shape, _ in found)
        reads = 1 + min(shape.reads for shape in shapes)
        return _composed(Kind.UNION, reads, shapes), [clean for _, clean in found]

    def _of_items(self, node: dict[str, Any], kind: str, namespace: str, level: int) -> tuple[Shape, Any]:
        inner = "items" if kind == "array" else "values"
        shape, clean = self.read(node.get(inner), namespace, level + 1)
        return _composed(Kind(kind), 1, (shape,)), {"type": kind, inner: clean}

    def _definition(self, node: dict[str, Any], kind: str, namespace: str, level: int) -> tuple[Shape, Any]:
        full, space = _full_name(node, namespace)
        if full in self._named or full in self._open:
            raise UnsafeSchemaError(f"the schema defines {full[:100]} twice")
        aliases = _texts(node.get("aliases", []), "aliases")
        # A name without a namespace has none, wherever the type is defined.
        clean: dict[str, Any] = {"type": kind, "name": full, **({} if "." in full else {"namespace": ""})}
        if aliases:
            clean["aliases"] = list(aliases)
        if kind == "enum":
            shape = _enum(node, clean, full, aliases)
        elif kind == "fixed":
            shape = _fixed(node, clean, full, aliases)
            clean |= self._logical(node)
        else:
            clean["type"] = "record"
            self._open.add(full)
            shape = self._record(node, clean, full, aliases, space, level)
            self._open.discard(full)
        self._named[full] = shape
        return shape, clean

    def _record(
        self, node: dict[str, Any], clean: dict[str, Any], full: str, aliases: tuple[str, ...], space: str, level: int
    ) -> Shape:
        declared = node.get("fields")
        if not isinstance(declared, list):
            raise UnsafeSchemaError(f"the record {full[:100]} has no list of fields")
        fields: dict[str, Field] = {}
        cleaned = clean["fields"] = []
        for one in declared:
            name = one.get("name") if isinstance(one, dict) else None
            if not isinstance(name, str) or not name:
                raise UnsafeSchemaError(f"a field of {full[:100]} has no name")
            if name in fields:
                raise UnsafeSchemaError(f"{full[:100]} has the field {name[:100]} twice")
            shape, inner = self.read(one.get("type"), space, level + 1)
            other_names = _texts(one.get("aliases", []), "aliases")
            entry = {"name": name, "type": inner}
            if other_names:
                entry["aliases"] = list(other_names)
            weight = None
            if "default" in one:
                entry["default"] = one["default"]
                weight = _weight(one["default"])
            fields[name] = Field(name, shape, other_names, weight)
            cleaned.append(entry)
        reads = sum(field.shape.reads for field in fields.values())
        shapes = tuple(field.shape for field in fields.values())
        return _composed(Kind.RECORD, reads, shapes, fields=tuple(fields.values()), name=full, aliases=aliases)


# Doubling records have 2^n reads; a lower bound may be low, and so stays a small number.
_READS_COUNTED_MAX = 1_000_000
_NULL = Shape(Kind.NULL, 0)
_PLAIN = Shape(Kind.PLAIN, 1)


def _composed(kind: Kind, reads: int, parts: tuple[Shape, ...], **more: Any) -> Shape:
    nesting = 1 + max((part.nesting for part in parts), default=0)
    if nesting > NESTING_MAX:
        raise UnsafeSchemaError(f"the schema is nested deeper than {NESTING_MAX} levels")
    return Shape(kind, min(reads, _READS_COUNTED_MAX), nesting, parts, **more)


def _full_name(node: dict[str, Any], namespace: str) -> tuple[str, str]:
    """Return the full name of a type, and the namespace for its inner definitions."""
    name, space = node.get("name"), node.get("namespace", namespace)
    if not isinstance(name, str) or not name or not isinstance(space, str | None):
        raise UnsafeSchemaError("a type of the schema has no name")
    if "." in name:
        return name, name.rpartition(".")[0]
    return (f"{space}.{name}", space) if space else (name, "")


def _enum(node: dict[str, Any], clean: dict[str, Any], full: str, aliases: tuple[str, ...]) -> Shape:
    symbols = _texts(node.get("symbols"), "symbols")
    if not symbols:
        raise UnsafeSchemaError(f"the enum {full[:100]} has no symbols")
    clean["symbols"] = list(symbols)
    if "default" in node:
        clean["default"] = node["default"]
    return Shape(Kind.ENUM, 1, name=full, aliases=aliases, symbols=symbols)


def _fixed(node: dict[str, Any], clean: dict[str, Any], full: str, aliases: tuple[str, ...]) -> Shape:
    size = node.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= FIXED_BYTES_MAX:
        raise UnsafeSchemaError(f"the fixed type {full[:100]} has a size that no event has")
    clean["size"] = size
    return Shape(Kind.FIXED, min(size, 1), name=full, aliases=aliases)


def _texts(node: Any, what: str) -> tuple[str, ...]:
    if not isinstance(node, list) or not all(isinstance(one, str) for one in node):
        raise UnsafeSchemaError(f"{what} of the schema must be a list of texts")
    return tuple(node)


def _weight(default: Any) -> int:
    """Return how many values a default holds; one that JSON cannot represent is refused."""
    count = 0
    level: Sequence[Any] = [default]
    for _ in range(NESTING_MAX):
        count += len(level)
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                count += sum(characters_weight(name) for name in value)
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str):
                count += characters_weight(value)
            elif isinstance(value, int) and not _LONG_MIN <= value <= _LONG_MAX:
                raise UnsafeSchemaError("a default of the schema is a number beyond 64 bits")
        if not inner:
            return count
        level = inner
    raise UnsafeSchemaError(f"a default of the schema is nested deeper than {NESTING_MAX} levels")
