"""Decides whether a replay is worth more than one process, and which partitions each of them reads.

Invariant: a partition is read by one process, so that its order is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

# Formats that can be combined from pieces; an Avro file is one stream of blocks.
KINDS = frozenset({"jsonl", "csv", "parquet"})
# A process takes half a second to start, in which the first one would have written as many.
SHARE_RECORDS_MIN = 100_000
# Each takes about 100 MB, most of it libraries, and together they should stay below 300 MB beside their parent.
PROCESSES_MAX = 2


class Span(Protocol):
    """Offsets of a partition: `low` is the first, `high` one past the last."""

    @property
    def low(self) -> int:
        """Return the first offset."""

    @property
    def high(self) -> int:
        """Return one past the last offset."""


class Share(NamedTuple):
    """A span for another process, which then need not load the broker's types."""

    low: int
    high: int


def shares_of(spans: Mapping[int, Span], cores: int) -> list[dict[int, Share]]:
    """Return the partitions of each process, distributed evenly; a single share if more would not pay."""
    shares: list[dict[int, Share]] = [{} for _ in range(max(1, min(cores, PROCESSES_MAX)))]
    sizes = [0] * len(shares)
    by_size = sorted(spans.items(), key=lambda item: (item[1].low - item[1].high, item[0]))
    for partition, span in by_size:
        least = sizes.index(min(sizes))
        shares[least][partition] = Share(span.low, span.high)
        sizes[least] += span.high - span.low
    whole = {partition: span for share in shares for partition, span in share.items()}
    return shares if min(sizes) >= SHARE_RECORDS_MIN else [whole]
