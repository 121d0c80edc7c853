"""Owns what the process of a search is told to do; apart from the doing, which its parent need not load."""

from __future__ import annotations

from dataclasses import dataclass

from highwater.connectors.replay.cursors import Search
from highwater.streams.access import RegistryAccess

# Why a search does not begin, as its process says it.
INVALID, MISSING, UNAVAILABLE = "invalid", "missing", "unavailable"


@dataclass(frozen=True, slots=True)
class SearchTask:
    """What one process is to do. `limit` is a page's records; `kind` a format of `writers.FORMATS` where all is exported."""

    client: dict[str, str]
    registry: RegistryAccess | None
    search: Search
    cursor: str | None
    now_ms: int
    limit: int
    kind: str | None = None
