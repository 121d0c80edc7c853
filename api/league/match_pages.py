"""Serves a match as a page; `api/league/matches.py` composes its content."""

from __future__ import annotations

import gzip

from highwater.api.core.encodings import Encoding
from highwater.api.league.matches import MatchDocuments, MatchParts
from highwater.connectors.pages.reads import Served
from highwater.streams.league.resources import KINDS

# A match is put together for each answer, and brotli's gain on its few hundred bytes is not worth its time.
ENCODINGS: tuple[Encoding, ...] = ("gzip", "identity")
PARTS = ("match_meta", "match_live")
_GZIP_LEVEL = 5


class MatchSource:
    """A match, of two documents."""

    name = "match"
    reads = PARTS
    topics = frozenset().union(*(KINDS[part].topics for part in PARTS))
    encodings = ENCODINGS
    is_private = False

    def __init__(self, matches: MatchDocuments, match_id: str) -> None:
        self._matches = matches
        self._match_id = match_id

    def look(self) -> tuple[Served, MatchParts] | None:
        """The match and its parts."""
        parts = self._matches.quick(self._match_id)
        return None if parts is None else (parts.served, parts)

    async def near(self) -> Served | None:
        """The match."""
        parts = await self._matches.near(self._match_id)
        return None if parts is None else parts.served

    async def read(self, *, is_positioned: bool) -> tuple[Served, MatchParts]:
        """The match and its parts."""
        parts = await self._matches.read(self._match_id, is_positioned=is_positioned)
        return parts.served, parts

    def body(self, of: MatchParts, encoding: Encoding) -> bytes | None:
        """Of the parts' versions."""
        return _coded(self._matches.body(of), encoding)

    async def payload(self, of: MatchParts, encoding: Encoding) -> bytes | None:
        """Of the parts' versions."""
        return _coded(await self._matches.payload(of), encoding)


def _coded(body: bytes | None, encoding: Encoding) -> bytes | None:
    # A fixed time in the header of gzip, or equal bytes would look different each time.
    return gzip.compress(body, _GZIP_LEVEL, mtime=0) if body is not None and encoding == "gzip" else body
