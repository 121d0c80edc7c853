"""Schemas and bytes from external producers, drawn from a seeded generator: mostly valid Avro, harmless or hostile."""

from __future__ import annotations

import json
import random  # noqa: TID251 - seeded: the same schemas and bytes in every run
from typing import Any

_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_LOGICAL = (
    {"type": "bytes", "logicalType": "decimal", "precision": 10**6, "scale": 3},
    {"type": "string", "logicalType": "uuid"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
)


class AnySchema:
    """Draws schemas; remembers the types that it has named in the present one."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._named: list[str] = []

    def text(self, own: str) -> str:
        """A schema: of anything, or the topic's own with a further field of anything."""
        self._named = []
        if self._draw.random() < 0.5:
            return json.dumps(self._hostile() if self._draw.random() < 0.3 else self._type(0))
        schema: dict[str, Any] = json.loads(own)
        inner = self._hostile() if self._draw.random() < 0.3 else self._type(1)
        field = self._draw.choice(
            [
                {"name": "further", "type": ["null", inner], "default": None},
                {"name": "further", "type": {"type": "array", "items": inner}, "default": []},
                {"name": "further", "type": {"type": "map", "values": inner}, "default": {}},
            ]
        )
        if isinstance(inner, list):  # a union stands in no union
            field = {"name": "further", "type": {"type": "array", "items": inner}, "default": []}
        schema["fields"].insert(self._draw.randrange(len(schema["fields"]) + 1), field)
        return json.dumps(schema)

    def _name(self) -> str:
        return f"N{len(self._named)}"

    def _type(self, depth: int) -> Any:
        kinds = ["plain", "plain", "logical", "enum", "fixed", "named"]
        if depth < 6:
            kinds += ["array", "map", "union", "record", "record"]
        kind = self._draw.choice(kinds)
        if kind == "array":
            return {"type": "array", "items": self._type(depth + 1)}
        if kind == "map":
            return {"type": "map", "values": self._type(depth + 1)}
        if kind == "union":
            return self._union(depth)
        if kind == "record":
            name = self._name()
            self._named.append(name)
            fields = [{"name": f"f{n}", "type": self._type(depth + 1)} for n in range(self._draw.randrange(5))]
            return {"type": "record", "name": name, "fields": fields}
        if kind == "named" and self._named:
            return self._draw.choice(self._named)
        return self._leaf(kind)

    def _leaf(self, kind: str) -> Any:
        if kind == "logical":
            return dict(self._draw.choice(_LOGICAL))
        if kind in ("enum", "fixed"):
            name = self._name()
            self._named.append(name)
            if kind == "enum":
                symbols = [f"s{n}" for n in range(self._draw.choice((1, 3, 40)))]
                return {"type": "enum", "name": name, "symbols": symbols}
            return {"type": "fixed", "name": name, "size": self._draw.choice((0, 1, 16, 10**5))}
        return self._draw.choice(_PRIMITIVES)

    def _union(self, depth: int) -> list[Any]:
        branches: dict[str, Any] = {}
        for _ in range(self._draw.randrange(1, 5)):
            branch = self._type(depth + 1)
            if not isinstance(branch, list):
                branches[json.dumps(branch)] = branch
        return list(branches.values()) or ["null"]

    def _hostile(self) -> Any:
        draw = self._draw
        name = self._name()
        self._named.append(name)
        levels = draw.choice((3, 12, 25, 40))
        return draw.choice(
            [
                {"type": "array", "items": "null"},
                {"type": "map", "values": {"type": "array", "items": "null"}},
                {"type": "record", "name": name, "fields": [{"name": "r", "type": name}]},
                {"type": "record", "name": name, "fields": [{"name": "r", "type": ["null", name]}]},
                {"type": "record", "name": name, "fields": [{"name": "r", "type": {"type": "array", "items": name}}]},
                {"type": "array", "items": {"type": "fixed", "name": name, "size": 0}},
                {"type": "array", "items": {"type": "record", "name": name, "fields": []}},
                _doubling(name, levels),
                _within(levels, lambda inner: {"type": "array", "items": inner}),
                _within(levels, lambda inner: {"type": "map", "values": inner}),
                {"type": "array", "items": _wide(name, draw.choice((5, 14, 40, 2_000)))},
                {
                    "type": "array",
                    "items": [{"type": "enum", "name": f"{name}{n}", "symbols": ["a"]} for n in range(90)],
                },
            ]
        )


def _doubling(name: str, levels: int) -> dict[str, Any]:
    """Each record holds the one before it twice."""
    inner: Any = "null"
    for level in range(levels):
        twice = [{"name": "a", "type": inner}, {"name": "b", "type": inner if level == 0 else f"{name}_{level - 1}"}]
        inner = {"type": "record", "name": f"{name}_{level}", "fields": twice}
    return dict(inner)


def _within(levels: int, context: Any) -> Any:
    inner: Any = "int"
    for _ in range(levels):
        inner = context(inner)
    return inner


def _wide(name: str, count: int) -> dict[str, Any]:
    """Many values for one byte."""
    fields = [{"name": f"f{n}", "type": "null"} for n in range(count)] + [{"name": "one", "type": "boolean"}]
    return {"type": "record", "name": name, "fields": fields}


class AnyBytes:
    """Draws bytes: noise, counts that nothing has, long runs, and data of a schema that are whole or damaged."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._named: dict[str, Any] = {}
        self._budget = 0

    def of(self, schema: Any) -> bytes:
        """Some bytes for a schema."""
        draw = self._draw
        kind = draw.random()
        if kind < 0.2:
            return draw.randbytes(draw.randrange(60))
        if kind < 0.3:
            return bytes(draw.choice((0, 1, 2, 3, 4)) for _ in range(draw.randrange(60)))
        if kind < 0.4:
            return varint(draw.choice((2**62, -(2**63), -1, 10**6, 4 * 10**18))) + draw.randbytes(draw.randrange(30))
        if kind < 0.42:
            return bytes([draw.choice((0, 1, 2, 0x80, 0xFF))]) * draw.choice((1_000, 50_000))
        self._named, self._budget = {}, 200
        whole = bytearray(self._datum(schema))
        if kind < 0.8 or not whole:
            return bytes(whole)
        for _ in range(draw.randrange(1, 4)):
            place = draw.randrange(len(whole) + 1)
            whole[place : place + draw.randrange(2)] = draw.choice(
                (b"", draw.randbytes(1), varint(2**62), varint(-1), varint(-(2**63)))
            )
        return bytes(whole)

    def _datum(self, schema: Any, depth: int = 0) -> bytes:
        draw = self._draw
        self._budget -= 1
        if self._budget < 0:  # a record that doubles has no end here either
            return b""
        if isinstance(schema, list):
            branch = draw.randrange(len(schema))
            return varint(branch) + self._datum(schema[branch], depth + 1)
        if isinstance(schema, str):
            named = self._named.get(schema.rpartition(".")[2])
            if schema in _PRIMITIVES:
                return self._plain(schema)
            return b"" if named is None or depth > 60 else self._datum(named, depth + 1)
        if "name" in schema:
            self._named[schema["name"].rpartition(".")[2]] = schema
        return self._of_declared(schema, depth)

    def _of_declared(self, schema: Any, depth: int) -> bytes:
        kind = schema["type"]
        if kind == "record":
            return b"".join(self._datum(field["type"], depth + 1) for field in schema["fields"])
        if kind in ("array", "map"):
            return self._items(schema, kind, depth)
        if kind == "fixed":
            return self._draw.randbytes(schema["size"])
        if kind == "enum":
            return varint(self._draw.randrange(len(schema["symbols"])))
        return self._plain(kind)

    def _items(self, schema: Any, kind: str, depth: int) -> bytes:
        count = self._draw.choice((0, 1, 3)) if self._budget > 0 and depth < 60 else 0
        if not count:
            return b"\0"
        inner = schema["items" if kind == "array" else "values"]
        items = [
            (self._plain("string") if kind == "map" else b"") + self._datum(inner, depth + 1) for _ in range(count)
        ]
        block = b"".join(items)
        if self._draw.random() < 0.2:  # the other form of a block: a negative count, then its bytes
            return varint(-count) + varint(len(block)) + block + b"\0"
        return varint(count) + block + b"\0"

    def _plain(self, kind: str) -> bytes:
        draw = self._draw
        if kind == "null":
            return b""
        if kind == "boolean":
            return bytes([draw.randrange(2)])
        if kind in ("int", "long"):
            return varint(draw.choice((0, -1, 1, 2**31, -(2**63), 2**63 - 1, draw.randrange(10**12))))
        if kind in ("float", "double"):
            return draw.randbytes(4 if kind == "float" else 8)
        text = draw.choice((b"", b"a", b"word " * draw.randrange(20), b"\xff\xfe"))
        return varint(len(text)) + text


def varint(number: int) -> bytes:
    """A long as Avro writes it."""
    rest = (number << 1) ^ (number >> 63)
    found = bytearray()
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)
