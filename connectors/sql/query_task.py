"""The parameters of a query; separate from running it, which the API's process need not load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from highwater.streams.access import RegistryAccess


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a query."""

    rows: int
    seconds: float
    memory_mib: int = 512


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of the tables' rows."""

    client: Mapping[str, str]
    registry: RegistryAccess | None
    database: str | None


@dataclass(frozen=True, slots=True)
class QueryTask:
    """One query for a process of its own; `kind` is a format of `answers.WRITERS`, or None for events, row by row."""

    query: str
    sources: Sources
    limits: Limits
    kind: str | None = None
