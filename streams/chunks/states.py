"""Names that events, rows and answers of chunks share."""

from __future__ import annotations

from enum import StrEnum


class Change(StrEnum):
    """What happened to a chunk."""

    INSERTED = "inserted"
    UPDATED = "updated"
    REVIVED = "revived"
    ORPHANED = "orphaned"
    ARCHIVED = "archived"
    REMOVED = "removed"
    EMBEDDED = "embedded"


class Outcome(StrEnum):
    """How the ingest of a source ended; all but COMPLETE mark no orphans (R3.20)."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    TRUNCATED = "truncated"
    FAILED = "failed"
    EMPTY = "empty"
    SUPERSEDED = "superseded"
    ABANDONED = "abandoned"


class Temperature(StrEnum):
    """How a chunk is kept (R3.21 to R3.23)."""

    HOT = "hot"
    WARM = "warm"
    COLD = "cold"
