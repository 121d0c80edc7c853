"""What the log cannot answer any more: partitions that lost records which no repair could recreate (`log_truncations`)."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping

from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.records import Record
from highwater.connectors.kafka.truncation import Truncation, all_truncations, is_replaced
from highwater.streams.wording import counted


async def holes_of(context: ProcessContext) -> dict[Place, str]:
    """Return the partitions with holes, with a sentence about each.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return holes(await all_truncations(context.pool))


async def without_replaced(context: ProcessContext, records: AsyncIterable[Record]) -> AsyncIterator[Record]:
    """Yield the records that consumers process: not those that stood where lost ones had stood, which were published again.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    repaired = [one for one in await all_truncations(context.pool) if not one.is_open]
    async for record in records:
        if not is_replaced(repaired, (record.topic, record.partition), record.offset):
            yield record


def holes(losses: Iterable[Truncation]) -> dict[Place, str]:
    """Return the partitions with holes; of one that was repaired completely there is nothing to say."""
    missing: dict[Place, int] = {}
    for loss in losses:
        lost = loss.next - loss.end_offset if loss.missing is None else loss.missing
        missing[loss.place] = missing.get(loss.place, 0) + lost
    return {
        (
            topic,
            partition,
        ): f"the log of {topic}/{partition} lost {counted(count, 'record')} that could not be recreated"
        for (topic, partition), count in missing.items()
        if count
    }


def by_topic(found: Mapping[Place, str]) -> dict[str, str]:
    """Return a sentence for each topic."""
    return {topic: text for (topic, _), text in sorted(found.items(), reverse=True)}
