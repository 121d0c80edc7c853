"""(a) The agents' tables: the agents read the log again, without a broker, and their rows are compared with the
changelogs.

Invariant: the expected rows are never computed from a changelog. Nothing that the agents send leaves the process, and
they keep their rows in memory: no group, application id or state folder is shared with a worker. Positions are fixed
before: up to what the group had committed when the changelogs were read every row must be equal; a row that later
events change may be as before or after any of them. Partitions are independent, so they are compared one after the
other, and only one's rows are held.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Mapping
from dataclasses import dataclass, field

from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.offsets import committed_offsets
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.records import Record
from highwater.connectors.verify.holes import by_topic, holes_of
from highwater.connectors.verify.kept import KEPT, kept_differences, note_decisions
from highwater.connectors.verify.log import decoded, read_all, read_in_order
from highwater.connectors.verify.notes import Noting, notes_on_disk
from highwater.connectors.verify.report import Checked, Difference
from highwater.connectors.verify.rows import ROWS, fields_that_differ
from highwater.connectors.verify.time_limits import TimeLimit
from highwater.schemas.positions import Position
from highwater.schemas.streams import TICK
from highwater.schemas.topics import keyed_partitions
from highwater.streams.agents import GROUP
from highwater.streams.driver import Delivered, Driver
from highwater.streams.settings import Settings
from highwater.streams.whole_tables import MARK_KEY

PART = "tables"
# The changelog is written before the offset is committed, but by another connection; differences are checked again
# after this long.
_SETTLE_SECONDS = 2.0

Key = tuple[int, bytes]  # partition, key
Live = Mapping[str, Mapping[Key, bytes]]


@dataclass(frozen=True, slots=True)
class Ends:
    """Positions fixed for one comparison: what the group had processed, and where the log ended afterwards."""

    committed: Mapping[Place, int]
    inputs: Mapping[Place, LogRange]

    def before(self) -> dict[Place, LogRange]:
        """Return what the tables must hold."""
        return {
            place: LogRange(span.low, min(span.high, max(span.low, self.committed.get(place, span.low))))
            for place, span in self.inputs.items()
        }

    def after(self) -> dict[Place, LogRange]:
        """Return what they may hold."""
        return {
            place: LogRange(max(span.low, self.committed.get(place, span.low)), span.high)
            for place, span in self.inputs.items()
        }


@dataclass(slots=True)
class Shadow:
    """The rows computed from the log, per table, with the last event of each; for rows that later events change, all states."""

    rows: dict[str, dict[Key, bytes]] = field(default_factory=dict)
    written_by: dict[str, dict[Key, Position]] = field(default_factory=dict)
    states: dict[str, dict[Key, list[bytes | None]]] = field(default_factory=dict)


def changelog_of(table: str) -> str:
    """Return the topic that holds a table."""
    return f"{GROUP}-{table}-changelog"


async def verify_tables(context: ProcessContext, settings: Settings, time_limit: TimeLimit) -> list[Checked]:
    """Compare every table of the agents with the rows computed from the log."""
    whole: dict[str, Checked] = {}
    for partition in range(keyed_partitions()):
        checked = await _verify_partition(context, settings, time_limit, partition)
        if any(one.differences_count for one in checked):
            # A row may have been in flight between the changelog and the commit; what remains is a difference.
            await asyncio.sleep(_SETTLE_SECONDS)
            checked = await _verify_partition(context, settings, time_limit, partition)
        for one in checked:
            whole.setdefault(one.name, Checked(PART, one.name)).add(one)
    return list(whole.values())


async def _verify_partition(
    context: ProcessContext, settings: Settings, time_limit: TimeLimit, partition: int
) -> list[Checked]:
    driver = memory_driver(context, settings, time_limit)
    time_limit.at(f"the ends of partition {partition}")
    ends, live = await _fixed(context, driver, time_limit, partition)
    shadow = await shadow_of(driver, lambda spans: read_in_order(context.client, spans, time_limit), ends)
    truncated = {
        **by_topic({place: text for place, text in (await holes_of(context)).items() if place in ends.inputs}),
        **truncated_topics(ends.inputs),
    }
    checked = [compare(table, shadow, live[table], truncated, driver) for table in driver.tables]
    await _compare_kept(context, time_limit, partition, {one.name: one for one in checked}, live)
    return checked


def truncated_topics(inputs: Mapping[Place, LogRange]) -> dict[str, str]:
    """Return topics whose beginning is gone, with a message about each; ticks are kept for a week by design."""
    return {
        topic: f"the log of {topic}/{partition} no longer has its first {span.low:,} events"
        for (topic, partition), span in inputs.items()
        if span.low > 0 and topic != TICK
    }


def memory_driver(context: ProcessContext, settings: Settings, time_limit: TimeLimit) -> Driver:
    """Return the agents with their tables in memory; nothing that they send is kept."""

    async def learn(schema_id: int) -> None:
        time_limit.at(f"the registry, for schema {schema_id}")
        context.codec.teach(schema_id, await context.registry.text_of(schema_id))

    driver = Driver(settings=settings, codec=context.codec, learn=learn)
    driver.keeps_outputs = False
    return driver


async def _fixed(
    context: ProcessContext, driver: Driver, time_limit: TimeLimit, partition: int
) -> tuple[Ends, dict[str, dict[Key, bytes]]]:
    """Read what was processed, then the tables, then the ends of the log: in this order, so that no row is ahead of the log."""
    committed = await asyncio.to_thread(committed_offsets, context.client, GROUP)
    counts = await context.admin.partition_counts()
    changelogs = {changelog_of(table): table for table in driver.tables}
    spans = await context.admin.log_ranges(
        [(topic, partition) for topic in changelogs if counts.get(topic, 0) > partition]
    )
    live: dict[str, dict[Key, bytes]] = {table: {} for table in driver.tables}
    async for record in read_all(context.client, spans, time_limit):
        rows = live[changelogs[record.topic]]
        if record.key == MARK_KEY:
            continue
        if record.value is None:
            rows.pop((record.partition, record.key or b""), None)
        else:
            rows[record.partition, record.key or b""] = record.value
    places = [(topic, partition) for topic in sorted(driver.topics) if counts.get(topic, 0) > partition]
    return Ends(committed, await context.admin.log_ranges(places)), live


async def _compare_kept(
    context: ProcessContext, time_limit: TimeLimit, partition: int, checked: Mapping[str, Checked], live: Live
) -> None:
    """Compare what rows keep of decisions at ticks with the events of those decisions; these end after the rows."""
    spans = await spans_of_decisions(context, partition)
    with notes_on_disk() as notes:
        await note_spans(context, time_limit, spans, notes)
        gone = incomplete_topics(spans, await holes_of(context))
        for table, kept in KEPT.items():
            one = checked[table]
            if missing := sorted(gone.keys() & set(kept.topics)):
                one.leave_out(f"what was decided at ticks: {'; '.join(gone[topic] for topic in missing)}")
                continue
            for (_, key), row in live[table].items():
                for difference in kept_differences(notes, table, key, row):
                    one.differs(difference)


async def spans_of_decisions(context: ProcessContext, partition: int) -> dict[Place, LogRange]:
    """Return what the log holds of the events behind what the rows of a partition keep of decisions."""
    counts = await context.admin.partition_counts()
    topics = sorted({topic for kept in KEPT.values() for topic in kept.topics if counts.get(topic, 0) > partition})
    return await context.admin.log_ranges([(topic, partition) for topic in topics])


async def note_spans(
    context: ProcessContext, time_limit: TimeLimit, spans: Mapping[Place, LogRange], notes: Noting
) -> None:
    """Note the decisions and advances in these ranges."""
    async for record in read_all(context.client, spans, time_limit):
        event = await decoded(context, record)
        if event is not None:
            note_decisions(notes, record, event)


def incomplete_topics(spans: Mapping[Place, LogRange], holes: Mapping[Place, str]) -> dict[str, str]:
    """Return the topics that do not have all of their events in these partitions any more, with a message about each."""
    cut = {
        topic: f"the log of {topic} no longer has its beginning" for (topic, _), span in spans.items() if span.low > 0
    }
    return cut | by_topic({place: text for place, text in holes.items() if place in spans})


async def shadow_of(
    driver: Driver, read: Callable[[Mapping[Place, LogRange]], AsyncIterable[Record]], ends: Ends
) -> Shadow:
    """Let the agents of a driver read the log: first what the tables must hold, then what they may hold."""
    shadow = Shadow()
    at: list[Record] = []
    is_late = False

    def watch(table: str) -> None:
        rows = shadow.rows.setdefault(table, {})
        written_by = shadow.written_by.setdefault(table, {})
        states = shadow.states.setdefault(table, {})

        def written(partition: int, key: bytes, row: bytes | None) -> None:
            place = partition, key
            if is_late:
                states.setdefault(place, [rows.get(place)]).append(row)
            if row is None:
                rows.pop(place, None)
            else:
                rows[place] = row
            written_by[place] = at[0].position

        driver.tables[table].watch = written

    for table in driver.tables:
        watch(table)
    for is_late, spans in ((False, ends.before()), (True, ends.after())):  # noqa: B007 (read by `written`)
        async for record in read(spans):
            at[:] = [record]
            place, timestamp = (record.topic, record.partition, record.offset), record.arrived_ms / 1000
            await driver.deliver(Delivered(*place, record.key, record.value, record.headers, timestamp))
    return shadow


def compare(
    table: str, shadow: Shadow, live: Mapping[Key, bytes], truncated: Mapping[str, str], driver: Driver
) -> Checked:
    """Compare the rows of a table in its changelog with those of the shadow."""
    checked = Checked(PART, table)
    if missing := sorted(set(driver.sources.get(table, ())) & set(truncated)):
        checked.skipped = "; ".join(truncated[topic] for topic in missing)
        return checked
    expected, states = shadow.rows.get(table, {}), shadow.states.get(table, {})
    for place in sorted(expected.keys() | live.keys()):
        _, key = place
        found = live.get(place)
        candidates = states.get(place, [expected.get(place)])
        if any(_is_same(table, key, candidate, found) for candidate in candidates):
            checked.compared += 1
            continue
        if place in states:
            checked.moved += 1
            continue
        wanted = expected.get(place)
        present = wanted if wanted is not None else found
        if (wanted is None or found is None) and present is not None and _may_be_gone(table, key, present):
            checked.leave_out("forgotten at a tick")
            continue
        checked.compared += 1
        name, one, other = fields_that_differ(
            table,
            _comparable(table, key, wanted),
            _comparable(table, key, found),
        )
        cause = shadow.written_by.get(table, {}).get(place)
        shown = key.decode("utf-8", "backslashreplace")
        checked.differs(Difference(shown, name, one, other, None if cause is None else str(cause)))
    return checked


def _is_same(table: str, key: bytes, one: bytes | None, other: bytes | None) -> bool:
    if one is None or other is None:
        return one is other
    if one == other:
        return True
    return _comparable(table, key, one) == _comparable(table, key, other)


def _comparable(table: str, key: bytes, row: bytes | None) -> bytes | None:
    """Return the compared part of a row; an unreadable row is not one that the log produces, and is compared as a whole."""
    try:
        return None if row is None else ROWS[table].comparable(key, row)
    except (ValueError, TypeError, KeyError):
        return row


def _may_be_gone(table: str, key: bytes, row: bytes) -> bool:
    try:
        return ROWS[table].may_be_gone(key, row)
    except (ValueError, TypeError, KeyError):
        return False
