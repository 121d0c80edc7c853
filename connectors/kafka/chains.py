"""Chains of events in consumers: passes the trace and the age of a batch's events on to their effects."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from highwater.connectors.kafka.records import Record
from highwater.streams.clock import ProductClock, wall_ns
from highwater.streams.telemetry import FRESHNESS_SECONDS
from highwater.streams.tracing import Hop, begin_hop, begin_hops, end_hop

_PLACE = itemgetter(0, 1, 2)  # topic, partition and offset of a record
# The broker stamps records by its own clock, so the product's clock, which may be moved, is not used.
_machine_clock = ProductClock()


class Batch(NamedTuple):
    """A batch in progress: its start (ns since 1970), the start of its oldest chain (ms; None: empty), and traced records."""

    start_ns: int
    oldest_ms: int | None
    hops: Sequence[Hop]


def begin_batch(group: str, records: Sequence[Record]) -> Batch:
    """Note what each record passes on."""
    found = [begin_hop(group, one.position, one.headers, one.arrived_ms) for one in records if one.headers]
    first = [one for one in records if not one.headers]
    arrived_ms = [one.arrived_ms for one in first]
    begin_hops(group, list(map(_PLACE, first)), arrived_ms)
    oldest_ms = min([origin_ms for origin_ms, _ in found] + arrived_ms, default=None)
    return Batch(wall_ns(), oldest_ms, [hop for _, hop in found if hop is not None])


def end_batch(group: str, batch: Batch) -> None:
    """Report that the effects are stored: readers see them from now on."""
    if batch.oldest_ms is not None:
        FRESHNESS_SECONDS.labels(group).observe(max(0, _machine_clock() - batch.oldest_ms) / 1000)
    if batch.hops:
        end_ns = wall_ns()
        for hop in batch.hops:
            end_hop(hop, group, batch.start_ns, end_ns)
