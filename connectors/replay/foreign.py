"""Owns how values of topics that the catalogue does not have are read: each by itself, as `kafka/foreign_values.py` reads it.

Invariant: such a value has no columns. In files of columns it is one text of JSON; conditions look at it as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson
import pyarrow as pa

from highwater.connectors.kafka.foreign_values import ForeignValues
from highwater.connectors.replay.decoding import Decoded, Decoder, Row
from highwater.connectors.replay.reading import Batch
from highwater.connectors.replay.subject import Subject
from highwater.schemas.errors import InvalidEventError, UnknownSchemaError
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
        """The values as texts of JSON."""
        return pa.array(self.written_rows, _TYPE)

    @property
    def written_rows(self) -> list[Row]:
        """The values as a file has them that has a schema."""
        return [None if row is None else {_COLUMN: orjson.dumps(row).decode()} for row in self.rows]

    def some(self, names: Sequence[str]) -> list[Row]:
        """The values whole."""
        del names
        return list(self.rows)

    def only(self, kept: Sequence[int]) -> Decoded:
        """The records at these places."""
        problems = {new: self.problems[old] for new, old in enumerate(kept) if old in self.problems}
        return ForeignDecoded(self.batch.only(kept), self.arrow_type, problems, [self.rows[place] for place in kept])


class ForeignDecoder(Decoder):
    """Values of one topic of another application."""

    is_open = True

    def __init__(self, registry: RegistryAccess | None) -> None:
        """Without a registry nothing is Avro."""
        self._access = registry
        self._values = ForeignValues(self._text_of)
        self.schema = dict(_SCHEMA)
        self.arrow_type = _TYPE

    def decode(self, batch: Batch) -> Decoded:
        """The values of a batch, one by one."""
        problems: dict[int, str] = {}
        rows: list[Any] = []
        for place, value in enumerate(batch.values):
            found = None
            if value is not None:
                try:
                    found = self.decode_one(value)
                except InvalidEventError as error:
                    problems[place] = str(error)
            rows.append(found)
        return ForeignDecoded(batch, self.arrow_type, problems, rows)

    def decode_one(self, value: bytes) -> dict[str, Any]:
        """A value, of whatever JSON type.

        Raises:
            InvalidEventError: it is neither Avro, nor JSON, nor text.
        """
        return cast("dict[str, Any]", self._values.value(value))

    def _text_of(self, schema_id: int) -> str:
        if self._access is None:
            raise UnknownSchemaError(schema_id)
        from highwater.connectors.kafka.registry import Registry  # noqa: PLC0415 - as in `subject.py`

        return asyncio.run(Registry(self._access).text_of(schema_id))


def decoder_of(topic: Topic, registry: RegistryAccess | None) -> Decoder:
    """What reads the values of a topic, whoever it belongs to.

    Raises:
        UnavailableError: the registry does not answer.
    """
    return Decoder(Subject.fetch(topic, registry)) if topic.is_catalogued else ForeignDecoder(registry)
