"""A record and a table of one partition, for tests that check each access of an agent to its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Record:
    """A record of one partition."""

    topic: str
    value: bytes
    offset: int
    key: bytes | None = None
    headers: Any = ()
    partition: int = 0
    timestamp: float | None = None


class Table(dict[bytes, bytes]):
    """A table of one partition."""

    offset_key = b"offset"

    @property
    def data(self) -> Table:
        """Its store."""
        return self

    def _db_for_partition(self, partition: int) -> Table:
        return self
