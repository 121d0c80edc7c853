"""The task of a search's process, separate from its execution, which the parent need not load."""

from __future__ import annotations

from dataclasses import dataclass

from highwater.connectors.replay.cursors import Search
from highwater.streams.access import RegistryAccess

# Why a search cannot begin, as its process reports it.
INVALID, MISSING, UNAVAILABLE = "invalid", "missing", "unavailable"


@dataclass(frozen=True, slots=True)
class SearchTask:
    """The task of one process. `limit` is a page's records; `kind` a format of `writers.FORMATS` for an export."""

    client: dict[str, str]
    registry: RegistryAccess | None
    search: Search
    cursor: str | None
    now_ms: int
    limit: int
    kind: str | None = None
