"""Serves a match as a page; `api/league/matches.py` composes its content."""

from __future__ import annotations

import gzip

from highwater.api.core.encodings import Encoding
from highwater.api.league.matches import MatchDocuments, MatchParts
from highwater.connectors.pages.reads import Served
from highwater.streams.league.resources import KINDS

# A match is assembled for each answer, and compressing its few hundred bytes with brotli is not worth the time.
ENCODINGS: tuple[Encoding, ...] = ("gzip", "identity")
PARTS = ("match_meta", "match_live")
_GZIP_LEVEL = 5


class MatchSource:
    """The source of a match, which consists of two documents."""

    name = "match"
    reads = PARTS
    topics = frozenset().union(*(KINDS[part].topics for part in PARTS))
    encodings = ENCODINGS
    is_private = False

    def __init__(self, matches: MatchDocuments, match_id: str) -> None:
        self._matches = matches
        self._match_id = match_id

    def look(self) -> tuple[Served, MatchParts] | None:
        """Return the match and its parts from memory."""
        parts = self._matches.quick(self._match_id)
        return None if parts is None else (parts.served, parts)

    async def near(self) -> Served | None:
        """The match."""
        parts = await self._matches.near(self._match_id)
        return None if parts is None else parts.served

    async def read(self, *, is_positioned: bool) -> tuple[Served, MatchParts]:
        """Return the match and its parts."""
        parts = await self._matches.read(self._match_id, is_positioned=is_positioned)
        return parts.served, parts

    def body(self, of: MatchParts, encoding: Encoding) -> bytes | None:
        """Return the body for the versions of the parts, from memory."""
        return _coded(self._matches.body(of), encoding)

    async def payload(self, of: MatchParts, encoding: Encoding) -> bytes | None:
        """Return the body for the versions of the parts."""
        return _coded(await self._matches.payload(of), encoding)


def _coded(body: bytes | None, encoding: Encoding) -> bytes | None:
    # A fixed time in the gzip header, or equal bytes would differ each time.
    return gzip.compress(body, _GZIP_LEVEL, mtime=0) if body is not None and encoding == "gzip" else body
