"""Decodes values of topics outside the catalogue: each separately, by `kafka/foreign_values.py`.

Invariant: such a value has no columns. In columnar files it is one JSON text; conditions see it unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from highwater.connectors.kafka.foreign_values import ForeignValues, SchemaName
from highwater.connectors.replay.decoding import Decoded, Decoder, Row
from highwater.connectors.replay.reading import Batch
from highwater.connectors.replay.subject import Subject
from highwater.schemas.envelope import Headers
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.exact_json import with_doubles, write_json
from highwater.schemas.topics import Topic
from highwater.streams.access import RegistryAccess

_COLUMN = "json"
_TYPE = pa.struct([pa.field(_COLUMN, pa.string())])
_SCHEMA = {"type": "record", "name": "Value", "fields": [{"name": _COLUMN, "type": "string"}]}


@dataclass(slots=True)
class ForeignDecoded(Decoded):
    """A batch whose rows are any JSON values."""

    @property
    def column(self) -> pa.StructArray:
        """Return the values as JSON texts."""
        return pa.array(self.written_rows, _TYPE)

    @property
    def written_rows(self) -> list[Row]:
        """Return the values as a file with a schema has them; `null` of JSON as a text, unlike a tombstone."""
        return [
            None if value is None or place in self.problems else {_COLUMN: write_json(row).decode()}
            for place, (value, row) in enumerate(zip(self.batch.values, self.rows, strict=True))
        ]

    def some(self, names: Sequence[str]) -> list[Row]:
        """Return the complete values, long numbers as doubles: conditions have no others."""
        del names
        return [with_doubles(row) for row in self.rows]

    def only(self, kept: Sequence[int]) -> Decoded:
        """Return the records at these indexes."""
        problems = {new: self.problems[old] for new, old in enumerate(kept) if old in self.problems}
        return ForeignDecoded(self.batch.only(kept), self.arrow_type, problems, [self.rows[place] for place in kept])


class ForeignDecoder(Decoder):
    """Decodes values of one topic of another application."""

    is_open = True

    def __init__(self, registry: RegistryAccess | None) -> None:
        """Without a registry nothing is decoded as Avro."""
        self._access = registry
        self._values = ForeignValues(self._text_of)
        self.schema = dict(_SCHEMA)
        self.arrow_type = _TYPE

    def decode(self, batch: Batch) -> Decoded:
        """Decode the values of a batch, one by one."""
        problems: dict[int, str] = {}
        rows: list[Any] = []
        for place, value in enumerate(batch.values):
            found = None
            if value is not None:
                try:
                    found = self.decode_one(value, batch.headers[place])
                except InvalidEventError as error:
                    problems[place] = str(error)
            rows.append(found)
        return ForeignDecoded(batch, self.arrow_type, problems, rows)

    def decode_one(self, value: bytes, headers: Headers | None = None) -> dict[str, Any]:
        """Return a value, of any JSON type.

        Raises:
            InvalidEventError: it is neither Avro, nor JSON, nor text.
        """
        return cast("dict[str, Any]", self._values.value(value, headers))

    def _text_of(self, schema: SchemaName) -> str:
        from highwater.connectors.kafka.registry import Registry, unknown_schema  # noqa: PLC0415 - as in `subject.py`

        if self._access is None:
            raise unknown_schema(schema)
        return asyncio.run(Registry(self._access).text_of(schema))


def decoder_of(topic: Topic, registry: RegistryAccess | None) -> Decoder:
    """Return the decoder of a topic, also of another application's.

    Raises:
        UnavailableError: the registry does not answer.
    """
    return Decoder(Subject.fetch(topic, registry)) if topic.is_catalogued else ForeignDecoder(registry)
