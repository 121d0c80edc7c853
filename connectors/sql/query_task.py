"""The parameters of a query, and why it may fail; separate from running it, which its caller's process need not load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from highwater.schemas.errors import HighwaterError
from highwater.streams.access import RegistryAccess

OUT_OF_MEMORY = (
    "the query needs more memory than it may have; select fewer columns, aggregate, or narrow it by _timestamp"
)
# The kind of a task whose output is Arrow's stream of batches, and whose result is the summary.
ARROW = "arrow"


class InvalidQueryError(HighwaterError):
    """The query cannot be run. Correct what the message names."""


class QueryTimeoutError(HighwaterError):
    """The query did not end in time. Narrow it by `_timestamp`, `_partition` or `_offset`, or allow more time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a query."""

    rows: int
    seconds: float
    memory_mib: int = 512

    @property
    def too_slow(self) -> str:
        """Return the message of a query that took longer."""
        return f"the query did not end within {self.seconds:g} s; narrow it by _timestamp, _partition or _offset"


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of the tables' rows."""

    client: Mapping[str, str]
    registry: RegistryAccess | None
    database: str | None


@dataclass(frozen=True, slots=True)
class QueryTask:
    """One query for a process of its own; `kind` is a format of `answers.WRITERS`, `ARROW`, or None for events, row by
    row.
    """

    query: str
    sources: Sources
    limits: Limits
    kind: str | None = None
