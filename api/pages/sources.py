"""What a path shows: one document, or what a slice assembles from several.

Invariant: both routes to an answer, the normal one (`api/pages/documents.py`) and the shortcut
(`api/pages/shortcut.py`), read a page through the same source, so that they give the same answer. A source holds
references to what it reads and stores nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from highwater.api.core.encodings import ALL, Encoding
from highwater.connectors.pages.reads import Documents, Served
from highwater.connectors.redis.resource_cache import Head
from highwater.streams.pages.kinds import Resource


class Source(Protocol):
    """What a path shows. The second result of `look` and `read` identifies the body."""

    @property
    def name(self) -> str:
        """Return its name in metrics."""

    @property
    def reads(self) -> Sequence[str]:
        """Return the kinds of documents that it reads."""

    @property
    def topics(self) -> frozenset[str]:
        """Return the topics that feed it."""

    @property
    def encodings(self) -> Sequence[Encoding]:
        """Return the available codings, the preferred first."""

    @property
    def is_private(self) -> bool:
        """Return whether it has an owner."""

    def look(self) -> tuple[Served, Any] | None:
        """Return the page from memory, if it may be served now; None if anything has to be queried."""

    async def near(self) -> Served | None:
        """Return the page from memory or with a single request to Redis; None if that is not enough."""

    async def read(self, *, is_positioned: bool) -> tuple[Served, Any]:
        """Return the page as it may be served now; errors as of `Documents.read`."""

    def body(self, of: Any, encoding: Encoding) -> bytes | None:
        """Return the body of exactly that version, from memory."""

    async def payload(self, of: Any, encoding: Encoding) -> bytes | None:
        """Return the body of exactly that version; None if it was overtaken meanwhile."""


class DocumentSource:
    """One document."""

    encodings = ALL

    def __init__(self, documents: Documents, found: Resource) -> None:
        self._documents = documents
        self._found = found
        kind = found.kind
        self.name = kind.name
        self.reads = (kind.name,)
        self.topics = kind.topics
        self.is_private = kind.is_private

    def look(self) -> tuple[Served, Head] | None:
        """Return the document and its head from memory."""
        served = self._documents.quick(self._found)
        return None if served is None else (served, served.head)

    async def near(self) -> Served | None:
        """Return the document from memory or with one query to Redis."""
        return await self._documents.near(self._found)

    async def read(self, *, is_positioned: bool) -> tuple[Served, Head]:
        """Return the document and its head."""
        served = await self._documents.read(self._found, is_positioned=is_positioned)
        return served, served.head

    def body(self, of: Head, encoding: Encoding) -> bytes | None:
        """Return the body for the head's version from memory."""
        return self._documents.body(self._found, of, encoding)

    async def payload(self, of: Head, encoding: Encoding) -> bytes | None:
        """Return the body for the head's version."""
        return await self._documents.payload(self._found, of, encoding)
