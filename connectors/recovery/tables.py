"""Rebuilds rows that a changelog lost with its beginning, from the events, and appends them to the rest of the
changelog.

Invariant: what the changelog still has is newer than what is rebuilt, so only missing keys are written. The mark that a
partition is complete is written when the broker has all of them; before that, everything can be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.offsets import committed_offsets
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.recovery.changelogs import recreate_changelogs
from highwater.connectors.recovery.undecided import settled
from highwater.connectors.verify.log import read_all, read_in_order
from highwater.connectors.verify.notes import notes_on_disk
from highwater.connectors.verify.tables import (
    Ends,
    changelog_of,
    memory_driver,
    note_spans,
    shadow_of,
    spans_of_decisions,
    truncated_topics,
)
from highwater.connectors.verify.time_limits import TimeLimit
from highwater.schemas.errors import CatalogueMismatchError
from highwater.schemas.topics import keyed_partitions
from highwater.streams.agents import GROUP
from highwater.streams.preflight import changelogs_refusal
from highwater.streams.settings import Settings
from highwater.streams.whole_tables import MARK_KEY, is_whole, mark_of

PART = "tables"
# Rows in flight to the broker.
_ROWS_UNDER_WAY_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Recovered:
    """A completed partition of a table: the beginning of its changelog, and the number of written rows."""

    table: str
    partition: int
    log_start: int
    rows: int


@dataclass(slots=True)
class _Left:
    """The remaining rows of a partition's changelogs, by table."""

    starts: dict[str, int] = field(default_factory=dict)
    keys: dict[str, set[bytes]] = field(default_factory=dict)
    marks: dict[str, bytes] = field(default_factory=dict)

    def lost(self) -> list[str]:
        """Return the incomplete tables."""
        return sorted(table for table, start in self.starts.items() if not is_whole(start, self.marks.get(table)))


async def recover_tables(
    context: ProcessContext, settings: Settings, time_limit: TimeLimit, *, is_recreating: bool = False
) -> list[Recovered]:
    """Complete every table whose changelog lost its beginning. No worker may run.

    Args:
        context: the services.
        settings: those of the worker.
        time_limit: of the whole.
        is_recreating: recreate changelogs that have another number of partitions than the topics, if the events for all
            their rows exist.

    Raises:
        CatalogueMismatchError: the events for the rows are gone too, or a changelog has another number of partitions.
        UnavailableError: Kafka or the registry does not answer, or the time limit has ended.
    """
    await _agree_on_partitions(context, settings, time_limit, is_recreating=is_recreating)
    producer = AsyncProducer(context.client, client_id="highwater-recover-tables")
    try:
        found: list[Recovered] = []
        for partition in range(keyed_partitions()):
            found += await _recover_partition(context, settings, time_limit, producer, partition)
        return found
    finally:
        await producer.close()


async def _agree_on_partitions(
    context: ProcessContext, settings: Settings, time_limit: TimeLimit, *, is_recreating: bool
) -> None:
    """Recreate changelogs with another number of partitions than the topics, or refuse to continue with them."""
    driver = memory_driver(context, settings, time_limit)
    counts = await context.admin.partition_counts()
    # A missing one is created by the worker, with the right number.
    tables = {changelog_of(table): table for table in driver.tables if changelog_of(table) in counts}
    refusal = changelogs_refusal({name: counts[name] for name in tables}, keyed_partitions())
    if refusal is None:
        return
    if not is_recreating:
        raise CatalogueMismatchError(refusal)
    other = [name for name in tables if counts[name] != keyed_partitions()]
    for partition in range(keyed_partitions()):  # nothing is deleted before the events of every partition were checked
        inputs = await _inputs(context, partition, driver.topics)
        _require_inputs(inputs, {tables[name]: driver.sources.get(tables[name], ()) for name in other})
    await asyncio.to_thread(recreate_changelogs, context.client, other, keyed_partitions())


async def _recover_partition(
    context: ProcessContext, settings: Settings, time_limit: TimeLimit, producer: AsyncProducer, partition: int
) -> list[Recovered]:
    driver = memory_driver(context, settings, time_limit)
    left = await _left_of(context, time_limit, partition, driver.tables)
    lost = left.lost()
    if not lost:
        return []
    inputs = await _inputs(context, partition, driver.topics)
    _require_inputs(inputs, {table: driver.sources.get(table, ()) for table in lost})
    ends = Ends({place: span.high for place, span in inputs.items()}, inputs)  # nothing lies beyond what was committed
    shadow = await shadow_of(driver, lambda spans: read_in_order(context.client, spans, time_limit), ends)
    recovered = []
    with notes_on_disk() as notes:
        # Decisions to their end, and inputs up to where the tables read them: a row knows nothing of later ones.
        spans = await spans_of_decisions(context, partition)
        read = {place: inputs.get(place, span) for place, span in spans.items()}
        await note_spans(context, time_limit, read, notes)
        for table in lost:
            rows = {key: row for (_, key), row in shadow.rows[table].items() if key not in left.keys[table]}
            made = ((key, settled(notes, table, key, row)) for key, row in rows.items())
            await _write(producer, changelog_of(table), partition, made)
            await _write(producer, changelog_of(table), partition, [(MARK_KEY, mark_of(left.starts[table]))])
            recovered.append(Recovered(table, partition, left.starts[table], len(rows)))
    return recovered


async def _left_of(context: ProcessContext, time_limit: TimeLimit, partition: int, tables: Iterable[str]) -> _Left:
    counts = await context.admin.partition_counts()
    changelogs = {changelog_of(table): table for table in tables if counts.get(changelog_of(table), 0) > partition}
    spans = await context.admin.log_ranges([(topic, partition) for topic in changelogs])
    left = _Left({changelogs[topic]: span.low for (topic, _), span in spans.items()})
    left.keys = {table: set() for table in left.starts}
    lossy = {place: span for place, span in spans.items() if span.low > 0}
    async for record in read_all(context.client, lossy, time_limit):
        table = changelogs[record.topic]
        if record.key == MARK_KEY:
            left.marks[table] = record.value or b""
        else:
            left.keys[table].add(record.key or b"")
    return left


async def _inputs(context: ProcessContext, partition: int, topics: Iterable[str]) -> dict[Place, LogRange]:
    """Return the events that the worker has committed; it reads later ones itself."""
    committed = await asyncio.to_thread(committed_offsets, context.client, GROUP)
    counts = await context.admin.partition_counts()
    spans = await context.admin.log_ranges(
        [(topic, partition) for topic in sorted(topics) if counts.get(topic, 0) > partition]
    )
    return {
        place: LogRange(span.low, min(span.high, max(span.low, committed.get(place, span.low))))
        for place, span in spans.items()
    }


def _require_inputs(inputs: Mapping[Place, LogRange], sources: Mapping[str, Iterable[str]]) -> None:
    gone = truncated_topics(inputs)
    for table, topics in sources.items():
        for topic in sorted(set(topics) & set(gone)):
            raise CatalogueMismatchError(
                f"{gone[topic]}, so the rows of {table} cannot be rebuilt; restore Kafka's own data"
            )


async def _write(producer: AsyncProducer, topic: str, partition: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
    """Write rows and wait until the broker has them."""
    waiting = []
    for key, row in rows:
        waiting.append(await producer.enqueue(topic, row, key=key, partition=partition))
        if len(waiting) >= _ROWS_UNDER_WAY_MAX:
            await asyncio.gather(*waiting)
            waiting = []
    await asyncio.gather(*waiting)
