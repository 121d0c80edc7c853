"""What a path shows: one document, or what a household puts together of several.

The invariant: both ways to an answer, the usual one (`api/pages/documents.py`) and the short cut (`api/pages/shortcut.py`),
read a page through the same source, so that they give the same answer. A source holds what it reads from and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from highwater.api.core.encodings import ALL, Encoding
from highwater.connectors.pages.reads import Documents, Served
from highwater.connectors.redis.link import Head
from highwater.streams.pages.kinds import Resource


class Source(Protocol):
    """What a path shows. Of what `look` and `read` give, the second is what a body is made from."""

    @property
    def name(self) -> str:
        """What it is counted as."""

    @property
    def reads(self) -> Sequence[str]:
        """The kinds of documents that it reads."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics that feed it."""

    @property
    def encodings(self) -> Sequence[Encoding]:
        """The codings that there are, the preferred first."""

    @property
    def is_private(self) -> bool:
        """Whether it belongs to somebody."""

    def look(self) -> tuple[Served, Any] | None:
        """From memory alone: the page as it may be served now; None where anything has to be asked."""

    async def near(self) -> Served | None:
        """Return the page from memory or with a single request to Redis; None if that is not enough."""

    async def read(self, *, is_positioned: bool) -> tuple[Served, Any]:
        """The page as it may be served now; errors as of `Documents.read`."""

    def body(self, of: Any, encoding: Encoding) -> bytes | None:
        """The body of exactly that version, from memory alone."""

    async def payload(self, of: Any, encoding: Encoding) -> bytes | None:
        """The body of exactly that version; None when it was overtaken meanwhile."""


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
        """The document and its head."""
        served = self._documents.quick(self._found)
        return None if served is None else (served, served.head)

    async def near(self) -> Served | None:
        """The document."""
        return await self._documents.near(self._found)

    async def read(self, *, is_positioned: bool) -> tuple[Served, Head]:
        """The document and its head."""
        served = await self._documents.read(self._found, is_positioned=is_positioned)
        return served, served.head

    def body(self, of: Head, encoding: Encoding) -> bytes | None:
        """Of the head's version."""
        return self._documents.body(self._found, of, encoding)

    async def payload(self, of: Head, encoding: Encoding) -> bytes | None:
        """Of the head's version."""
        return await self._documents.payload(self._found, of, encoding)
