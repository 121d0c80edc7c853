"""The columns of a value of another application's topic: the value as JSON, its bytes, and the fields of its schema.

Invariant: a value that does not fit the registered schema has no fields, but its row exists; only a value that is
neither Avro of a registered schema, nor JSON, nor text has the reason in `_undecodable`, and its bytes.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from highwater.connectors.kafka.foreign_values import with_prefix
from highwater.connectors.replay.decoding import Decoded, Decoder
from highwater.connectors.replay.foreign import ForeignDecoder
from highwater.connectors.replay.reading import Batch
from highwater.connectors.replay.subject import Subject
from highwater.connectors.sql.foreign_topics import VALUE, VALUE_BYTES, foreign_fields
from highwater.connectors.sql.tables import foreign_type
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.logical_types import decimal_of
from highwater.streams.access import RegistryAccess

_UNDECODABLE = "_undecodable"


class ForeignColumns(ForeignDecoder):
    """Makes the columns of values; unused ones are null."""

    def __init__(self, subject: Subject | None, registry: RegistryAccess | None) -> None:
        """`subject` None: the registry has no schema for the topic."""
        super().__init__(registry)
        # None: every column.
        self._wanted: frozenset[str] | None = None
        self._events = None if subject is None else Decoder(subject)
        found = [] if subject is None else foreign_fields(subject.schema)
        fields = [pa.field(one["name"], foreign_type(one["type"])) for one in found]
        self.arrow_type = pa.struct([(VALUE, pa.string()), (VALUE_BYTES, pa.binary()), *fields])

    def narrowed(self, names: Collection[str]) -> ForeignColumns:
        """Return one that makes only these columns."""
        found = copy.copy(self)  # the parsed schemas are shared
        found._wanted = frozenset(names)  # noqa: SLF001 - of the same class
        return found

    def _wants(self, *names: str) -> bool:
        return self._wanted is None or not self._wanted.isdisjoint(names)

    def decode(self, batch: Batch) -> Decoded:
        """Return the columns of a batch."""
        problems: dict[int, str] = {}
        count = len(batch)
        texts = self._texts(batch, problems) if self._wants(VALUE, _UNDECODABLE) else [None] * count
        raw = batch.values if self._wants(VALUE_BYTES) else [None] * count
        columns = [pa.array(texts, pa.string()), pa.array(raw, pa.binary()), *self._fields(batch)]
        made = pa.StructArray.from_arrays(columns, fields=list(self.arrow_type))
        return Decoded(batch, self.arrow_type, problems, made_column=made)

    def _texts(self, batch: Batch, problems: dict[int, str]) -> list[str | None]:
        found: list[str | None] = []
        for place, value in enumerate(batch.values):
            text = None
            if value is not None:
                try:
                    text = self._values.json(value, batch.headers[place])
                except InvalidEventError as error:
                    problems[place] = str(error)
            found.append(text)
        return found

    def _fields(self, batch: Batch) -> list[pa.Array]:
        kinds = list(self.arrow_type)[2:]
        if self._events is None or not self._wants(*(kind.name for kind in kinds)):
            return [pa.nulls(len(batch), kind.type) for kind in kinds]
        values = list(map(with_prefix, batch.values, batch.headers))
        events = self._events.decode(replace(batch, values=values)).column
        places = {kind.name: place for place, kind in enumerate(self._events.arrow_type)}
        columns = events.flatten()
        return [_as(columns[places[kind.name]], kind.type) for kind in kinds]


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as SQL has it; a decimal with more digits than its type has is null there, like any misfit."""
    if not pa.types.is_decimal(kind):
        return column.cast(kind)
    numbers = [None if raw is None else decimal_of(kind.scale, raw) for raw in column.to_pylist()]
    return pa.array([one if _fits(one, kind.precision) else None for one in numbers], kind)


def _fits(number: Any, precision: int) -> bool:
    return isinstance(number, Decimal) and len(number.as_tuple().digits) <= precision
