"""Decodes the value of a record: to an event, or to the reason why it is not one.

Invariant: an unreadable value never ends a replay; its record is written with the reason and its bytes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from highwater.connectors.replay.columns import Flat, NotFlatError, arrow_type_of, struct_of
from highwater.connectors.replay.reading import Batch
from highwater.connectors.replay.subject import Subject
from highwater.schemas.codec import PREFIX_BYTES, read_event, schema_id_of
from highwater.schemas.envelope import Headers
from highwater.schemas.errors import InvalidEventError, UnknownSchemaError
from highwater.schemas.readable import Reading, readable
from highwater.schemas.shapes import UnsafeSchemaError

# Decoding a whole batch costs half a millisecond at any size; one by one a few microseconds per record.
_AT_ONCE_RECORDS_MIN = 100

Row = dict[str, Any] | None


@dataclass(slots=True)
class Decoded:
    """A batch with its events, as rows or columns; the other form is computed on request.

    `problems` gives, by index in the batch, why a value is not an event. A tombstone has neither event nor problem.
    """

    batch: Batch
    arrow_type: pa.StructType
    problems: dict[int, str]
    made_rows: list[Row] | None = None
    made_column: pa.StructArray | None = None

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def rows(self) -> list[Row]:
        """Return each event as the Avro library returns it: times in ms."""
        if self.made_rows is None:
            assert self.made_column is not None
            fields = [_plain(self.made_column.field(i)).to_pylist() for i in range(self.arrow_type.num_fields)]
            names = [field.name for field in self.arrow_type]
            self.made_rows = [dict(zip(names, row, strict=True)) for row in zip(*fields, strict=True)]
        return self.made_rows

    @property
    def column(self) -> pa.StructArray:
        """Return the events as one Arrow column. A value that does not fit Arrow's types becomes a problem."""
        if self.made_column is None:
            assert self.made_rows is not None
            self.made_column = struct_of(self.made_rows, self.arrow_type, self.problems)
        return self.made_column

    @property
    def written_rows(self) -> list[Row]:
        """Return the rows as a file with the decoder's schema has them."""
        return self.rows

    def some(self, names: Sequence[str]) -> list[Row]:
        """Return the events with only these fields."""
        if self.made_rows is not None:
            return [None if row is None else {name: row[name] for name in names} for row in self.made_rows]
        assert self.made_column is not None
        if not names:
            return [{} for _ in range(len(self))]
        fields = [_plain(self.made_column.field(name)).to_pylist() for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*fields, strict=True)]

    def only(self, kept: Sequence[int]) -> Decoded:
        """Return the records at these indexes."""
        return Decoded(
            self.batch.only(kept),
            self.arrow_type,
            {new: self.problems[old] for new, old in enumerate(kept) if old in self.problems},
            None if self.made_rows is None else [self.made_rows[i] for i in kept],
            None if self.made_column is None else self.made_column.take(pa.array(kept, pa.int64())),
        )


def _plain(column: pa.Array) -> pa.Array:
    """Return times as plain numbers."""
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


class Decoder:
    """Decodes events of one topic, each with the schema it was written with.

    `is_open`: values have fields that `arrow_type` does not know.
    """

    is_open = False

    def __init__(self, subject: Subject, *, at_once_min: int = _AT_ONCE_RECORDS_MIN) -> None:
        """A batch of fewer than `at_once_min` records is decoded one by one."""
        self._at_once_min = at_once_min
        self._subject = subject
        self._target = readable(json.dumps(subject.schema))
        self._readings: dict[int, Reading | UnsafeSchemaError] = {}
        self._flat: dict[int, Flat | None] = {}
        self.schema = subject.schema
        self.arrow_type = arrow_type_of(subject.schema)

    def narrowed(self, names: Collection[str]) -> Decoder:
        """Return a decoder that is used for these columns only; here it costs as much as all of them."""
        del names
        return self

    def decode(self, batch: Batch) -> Decoded:
        """Decode a batch: all at once if every value has one flat schema, else one by one."""
        column = self._at_once(batch.values) if len(batch) >= self._at_once_min else None
        if column is not None:
            return Decoded(batch, self.arrow_type, {}, made_column=column)
        problems: dict[int, str] = {}
        rows: list[Row] = []
        for place, value in enumerate(batch.values):
            event = None
            if value is not None:
                try:
                    event = self.decode_one(value)
                except (InvalidEventError, UnknownSchemaError) as error:
                    problems[place] = str(error)
            rows.append(event)
        return Decoded(batch, self.arrow_type, problems, made_rows=rows)

    def _at_once(self, values: list[bytes | None]) -> pa.StructArray | None:
        first = values[0] if values else None
        if first is None:
            return None
        try:
            schema_id = schema_id_of(first)
        except InvalidEventError:
            return None
        if schema_id not in self._flat:
            self._flat[schema_id] = self._flat_of(schema_id)
        flat = self._flat[schema_id]
        try:
            return None if flat is None else flat.column(values, first[:PREFIX_BYTES])
        except NotFlatError:
            return None

    def _flat_of(self, schema_id: int) -> Flat | None:
        """Return the fast decoder for a schema, if it is flat and equals the schema that is read into."""
        try:
            if self._reading(schema_id).reader is not None:
                return None
            return Flat(self._target.as_reader, self.arrow_type)
        except (NotFlatError, InvalidEventError, UnknownSchemaError):
            return None

    def decode_one(self, value: bytes, headers: Headers | None = None) -> dict[str, Any]:
        """Return the event in a value, times as ms since 1970.

        Raises:
            InvalidEventError: the bytes are not Avro in the wire format, or do not fit their schema.
            UnknownSchemaError: they name a schema that the registry does not have.
        """
        del headers  # our events name their schema in the value
        schema_id = schema_id_of(value)
        return read_event(value, schema_id, self._reading(schema_id))

    def _reading(self, schema_id: int) -> Reading:
        """Return how values of a schema are read; a refused one is refused again without another check."""
        found = self._readings.get(schema_id)
        if found is None:
            text = self._subject.text_of(schema_id)
            try:
                writer = readable(text)
                is_same = writer.canonical_form == self._target.canonical_form
                found = Reading(writer, None if is_same else self._target)
            except UnsafeSchemaError as error:
                found = error.with_traceback(None)
            self._readings[schema_id] = found
        if isinstance(found, UnsafeSchemaError):
            raise UnsafeSchemaError(f"schema {schema_id} is not decoded: {found}")
        return found
