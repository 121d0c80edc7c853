"""How many values a datum of a schema can hold: a number independent of its size, plus a number per byte.

Invariant: the count is never less than the number of values that the Avro library creates from any bytes, so that a
record with a small count is decoded soon. The count is one pass over the shapes, each visited once, however often it is
used: a record that doubles forty times is refused in microseconds, not counted to 2^40.

A datum is read in pieces of a byte or more (`Shape.reads`). An array holds as many items as there are pieces: an item
that takes `r` pieces and holds `a + b · pieces` values makes it `1 + (a / r + b) · pieces`. For `r = 0` (nulls, empty
records, fixed types of no bytes) there is no bound, since a count of 4 · 10^18 fits ten bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from highwater.schemas.shapes import Kind, Shape, UnsafeSchemaError, characters_weight

# Our schemas have up to 20 and 3; a record of a thousand fields is the widest that anybody maintains by hand.
VALUES_FROM_NOTHING_MAX = 1_000
# A record of fifteen nulls and a boolean in an array; beyond that the bytes say little about the work.
VALUES_PER_BYTE_MAX = 16.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """A datum of n bytes, read in at most n pieces, holds up to `from_nothing + per_byte · n` values."""

    from_nothing: int
    per_byte: float


@dataclass(frozen=True, slots=True)
class ReaderCosts:
    """The additional cost of reading into another schema: for a record, by its name, the reader's fields with their
    defaults; for every union and every enum the search in the reader's largest.
    """

    records: Mapping[str, int] = field(default_factory=dict)
    union: int = 0
    enum: int = 0


NO_READER = ReaderCosts()
# This many branches, or symbols, are searched in the time of one value.
_BRANCHES_A_VALUE, _SYMBOLS_A_VALUE = 4, 16


def reader_costs(reader: Shape) -> ReaderCosts:
    """Return the cost of reading into a schema."""
    records: dict[str, int] = {}
    branches = symbols = 0
    seen: set[int] = set()
    waiting = [reader]
    while waiting:
        shape = waiting.pop()
        if id(shape) in seen:
            continue
        seen.add(id(shape))
        waiting += shape.parts
        if shape.kind is Kind.RECORD:
            cost = sum(1 + len(one.aliases) + (one.default_weight or 0) for one in shape.fields)
            for name in _names(shape):
                records[name] = max(cost, records.get(name, 0))
        elif shape.kind is Kind.UNION:
            branches = max(branches, len(shape.parts))
        elif shape.kind is Kind.ENUM:
            symbols = max(symbols, len(shape.symbols))
    return ReaderCosts(records, branches // _BRANCHES_A_VALUE, symbols // _SYMBOLS_A_VALUE)


def bounds_of(shape: Shape, costs: ReaderCosts = NO_READER) -> Bounds:
    """Return the bounds of a datum that was written as `shape`.

    Raises:
        UnsafeSchemaError: it can hold more than any event needs, or an unlimited number.
    """
    return _Counter(costs).bounds(shape)


def _names(record: Shape) -> set[str]:
    """Return the names by which the Avro library finds a reader's record: its name without namespace, and its aliases."""
    return {record.name.rpartition(".")[2], *record.aliases}


class _Counter:
    """Bounds by shape, each counted once. Shapes are nested up to `NESTING_MAX`, as are the calls."""

    def __init__(self, costs: ReaderCosts) -> None:
        self._costs = costs
        self._found: dict[int, Bounds] = {}

    def bounds(self, shape: Shape) -> Bounds:
        found = self._found.get(id(shape))
        if found is None:
            found = self._found[id(shape)] = self._bounds(shape)
            if found.from_nothing > VALUES_FROM_NOTHING_MAX:
                what = f"{shape.name[:100] or shape.kind} holds more than {VALUES_FROM_NOTHING_MAX:,} values"
                raise UnsafeSchemaError(f"the schema's {what} for any bytes")
            if found.per_byte > VALUES_PER_BYTE_MAX:
                what = f"{shape.name[:100] or shape.kind} holds more than {VALUES_PER_BYTE_MAX:.0f} values"
                raise UnsafeSchemaError(f"the schema's {what} a byte")
        return found

    def _bounds(self, shape: Shape) -> Bounds:
        if shape.kind is Kind.ENUM:
            return Bounds(1 + self._costs.enum + max(map(characters_weight, shape.symbols)), 0.0)
        if shape.kind is Kind.ARRAY:
            return self._items(shape, 0)
        if shape.kind is Kind.MAP:
            return self._items(shape, 1)
        if shape.kind is Kind.UNION:
            found = [self.bounds(part) for part in shape.parts]
            return Bounds(
                self._costs.union + max(one.from_nothing for one in found), max(one.per_byte for one in found)
            )
        if shape.kind is Kind.RECORD:
            return self._record(shape)
        return Bounds(1, 0.0)

    def _items(self, shape: Shape, keys: int) -> Bounds:
        """An array, or a map, whose key is a value and a piece of its own."""
        item, bounds = shape.parts[0], self.bounds(shape.parts[0])
        reads = keys + item.reads
        if not reads:
            raise UnsafeSchemaError(f"the schema has an {shape.kind} of items that take no bytes")
        return Bounds(1, (keys + bounds.from_nothing) / reads + bounds.per_byte)

    def _record(self, shape: Shape) -> Bounds:
        from_nothing = 1 + max((self._costs.records.get(name, 0) for name in (*_names(shape), shape.name)), default=0)
        per_byte = 0.0
        for one in shape.fields:
            inner = self.bounds(one.shape)
            from_nothing += inner.from_nothing + characters_weight(one.name)
            per_byte = max(per_byte, inner.per_byte)
        return Bounds(from_nothing, per_byte)
