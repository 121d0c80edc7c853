"""JSON lines as documents, to be cut here, or as chunks that were cut elsewhere.

    {"source_id": "faq", "text": "…", "media_type": "text/markdown", "title": "…", "url": "…", "published_at":
        "2024-05-01"}
    {"source_id": "faq", "chunk_no": 0, "content": "…", "title": "…", "url": "…", "published_at": "…", "embedding":
        [0.1, …]}

Invariant: the result of a line depends only on the line; a bad one is a fault with its number. A document is one line,
so its end event is sent at once; chunks may come until the last line, and an unreadable line may belong to any source.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import orjson

from highwater.connectors.sources.chunked import Fault, Item, Piece, Reading, SourceDocument
from highwater.connectors.sources.files import PLAIN
from highwater.schemas.chunks import CHUNK_SUBMITTED
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.json_events import event_from_json
from highwater.streams.chunks.identity import check_key_part

# Fields that a chunk's line does not have: the target is an option of the command.
_PLACE = {"ingest_id": "-", "ns": "-", "slot": "-"}
_DOCUMENT_FIELDS = frozenset({"source_id", "text", "media_type", "title", "url", "published_at"})


class JsonLines:
    """The documents and chunks of lines."""

    is_paged = False

    def __init__(self, lines: Iterable[tuple[int, bytes | None]]) -> None:
        """Read these lines, each with its number; None stands for one that is too long."""
        self._lines = lines
        self.identity = ("lines",)
        self.reading = Reading()

    async def documents(self) -> AsyncIterator[Item]:
        """Yield the documents and chunks of the lines, in order."""
        try:
            for number, data in self._lines:
                yield self._item(number, data)
        except (OSError, EOFError, zlib.error) as error:
            self.reading.is_whole = False
            self.reading.why = f"the file cannot be read completely: {error}"

    async def gone(self, source_ids: Sequence[str]) -> list[str]:
        """Return none: lines do not say what is missing."""
        return []

    def _item(self, number: int, data: bytes | None) -> Item:
        where, source_id = f"line {number}", None
        try:
            said = _object(data)
            told = said.get("source_id")
            check_key_part("source_id", told if isinstance(told, str) else "")
            source_id = str(told)
            return Piece(number, _chunk(said)) if "chunk_no" in said or "content" in said else _document(said)
        except InvalidEventError as error:
            return Fault(where, f"{error} [{error.reason}]", source_id)


def _object(data: bytes | None) -> Mapping[str, Any]:
    if data is None:
        raise InvalidEventError("too_long", "it is longer than any event")
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidEventError("not_json", f"not JSON: {error}") from error
    if not isinstance(said, dict):
        raise InvalidEventError("not_an_object", "it is not a JSON object")
    return said


def _chunk(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in _PLACE:
        if name in fields:
            raise InvalidEventError("unknown_field", f"{name} is an option of the command, not of a line", field=name)
    return event_from_json(CHUNK_SUBMITTED, {**fields, **_PLACE})


def _document(fields: Mapping[str, Any]) -> SourceDocument:
    for name in fields:
        if name not in _DOCUMENT_FIELDS:
            raise InvalidEventError("unknown_field", f"a document has no field {name!r}", field=str(name)[:100])
    text, media_type = fields.get("text"), fields.get("media_type")
    for name, value in (("text", text), ("media_type", PLAIN if media_type is None else media_type)):
        if not isinstance(value, str):
            raise InvalidEventError("wrong_type", f"field {name!r} must be a string", field=name)
    # As for a chunk, so that common fields have the same errors.
    common = {name: fields.get(name) for name in ("source_id", "title", "url", "published_at")}
    checked = event_from_json(CHUNK_SUBMITTED, {**common, **_PLACE, "chunk_no": 0, "content": text})
    about = (checked["title"], checked["url"], checked["published_at"])
    return SourceDocument(checked["source_id"], checked["content"], media_type or PLAIN, *about)
