"""Brings a database that is behind the log up to it: results, numbers, versions and the sinks, before any role decides.

Invariant: nobody else works on the database meanwhile. A restore needs every role stopped; the catch-up of a server that
had gone back (`comparing.py`) runs before any role is admitted. It may be interrupted and repeated with the same `starts`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from highwater.connectors.alerts.opening import open_channels
from highwater.connectors.backup.cached_versions import note_cached_versions
from highwater.connectors.backup.recorded import read_results
from highwater.connectors.backup.replaying import FIRST, NEXT, THEN, Replay
from highwater.connectors.backup.results import Results
from highwater.connectors.backup.statements import QUERIES
from highwater.connectors.backup.versions import renew_versions
from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.records import Record
from highwater.connectors.postgres.pool import transaction
from highwater.connectors.verify.log import read_in_order
from highwater.connectors.verify.notes import notes_on_disk
from highwater.connectors.verify.time_limits import TimeLimit
from highwater.schemas.topics import TOPICS, all_topics
from highwater.streams.settings import Settings
from highwater.streams.telemetry import get_log

# Not results: ticks are the clock, and the other two record actions of people.
NO_RESULTS = frozenset({"streams.tick", "streams.dead-letter-handled", "security.action-recorded"})

_log = get_log("restore")


@dataclass(slots=True)
class Restored:
    """The outcome of a restore. `counts`: what was loaded from the log; `taken_at`: of the backup, None from the log alone."""

    taken_at: str | None
    rows: int = 0
    events: int = 0
    renewed: int = 0
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogNow:
    """The catalogue's topics as the broker has them now."""

    topic_ids: Mapping[str, str]
    ranges: Mapping[Place, LogRange]

    def of(self, topics: Collection[str]) -> dict[Place, LogRange]:
        """Return the partitions of some topics."""
        return {place: found for place, found in self.ranges.items() if place[0] in topics}


async def log_now(context: ProcessContext) -> LogNow:
    """Query the broker.

    Raises:
        UnavailableError: it does not answer.
    """
    counts = await context.admin.partition_counts()
    names = sorted(topic.name for topic in all_topics() if topic.name in counts)
    places = [(name, partition) for name in names for partition in range(counts[name])]
    return LogNow(await context.admin.topic_ids(names), await context.admin.log_ranges(places))


def result_topics() -> list[str]:
    """Return the topics that report results, and those of dead letters."""
    own = [topic.name for topic in TOPICS.values() if not topic.outsider and topic.name not in NO_RESULTS]
    return own + [topic.dead_letter for topic in TOPICS.values()]


class CatchUp:
    """One catch-up, to the ends of the log when it began."""

    def __init__(
        self, context: ProcessContext, settings: Settings, time_limit: TimeLimit, say: Callable[[str], None]
    ) -> None:
        self._context = context
        self._settings = settings
        self._time_limit = time_limit
        self._say = say

    async def run(self, log: LogNow, starts: Mapping[Place, int], found: Restored) -> None:
        """Read results from these starts (else from the log's beginning), run the sinks, and raise numbers and versions.

        Raises:
            UnavailableError: a service does not answer, or the time has run out.
        """
        context, now_ms = self._context, self._context.clock()
        self._say("reading what the log has as a result")
        with notes_on_disk() as notes:
            spans = {
                place: LogRange(max(span.low, starts.get(place, span.low)), span.high)
                for place, span in log.of(result_topics()).items()
            }
            told = await read_results(context, spans, notes, self._time_limit)
            results = Results(told, context.codec, now_ms)
            async with transaction(context.pool) as tx:
                await results.raise_numbers(tx)
            async with AsyncExitStack() as resources:
                replay = Replay(context, self._settings, told, self._time_limit)
                await replay.open(resources)
                self._say("replaying the sinks")
                await self._replay(replay, FIRST, log)
                await self._replay(replay, NEXT, log)
                channels = [channel.name for channel in open_channels(self._settings, context.clock)]
                async with transaction(context.pool) as tx:
                    await results.load_jobs(tx)
                    await results.load_runs(tx)
                    await results.load_charges(tx)
                    await results.load_alerts(tx, channels)
                    await results.load_ingests(tx)
                await self._replay_controls(replay, results, log)
                await self._replay(replay, THEN[1:], log)
            async with transaction(context.pool) as tx:
                await results.load_rebuilds(tx)
                await note_cached_versions(tx, self._settings, told)
                found.renewed = await renew_versions(tx, context.codec, told, replay.bumped, now_ms)
            found.events, found.counts = replay.events, results.loaded.counts

    async def _replay_controls(self, replay: Replay, results: Results, log: LogNow) -> None:
        """Replay controls one by one: the outcome of a run that one restarted must be known before the next is applied."""
        (name, *_) = THEN
        spans = await self._spans(replay, (name,), log)
        async for record in read_in_order(self._context.client, spans, self._time_limit):
            await replay.run((name,), _only(record), log.topic_ids)
            async with transaction(self._context.pool) as tx:
                await results.load_runs(tx)

    async def _replay(self, replay: Replay, names: Sequence[str], log: LogNow) -> None:
        spans = await self._spans(replay, names, log)
        if names == NEXT:
            # Plans are read too; their own sink continues from its position.
            spans |= await self._spans_of("organizations", ("jobs.plan-changed",), log)
        await replay.run(names, read_in_order(self._context.client, spans, self._time_limit), log.topic_ids)

    async def _spans(self, replay: Replay, names: Sequence[str], log: LogNow) -> dict[Place, LogRange]:
        found: dict[Place, LogRange] = {}
        for name in names:
            found |= await self._spans_of(name, replay.topics_of(name), log)
        return found

    async def _spans_of(self, group: str, topics: Sequence[str], log: LogNow) -> dict[Place, LogRange]:
        """Return the offsets from a group's positions to the ends; a partition that an operator has to resume is skipped."""
        async with transaction(self._context.pool) as tx:
            rows = [row for row in await tx.fetch(QUERIES["backup_positions"]) if row["group"] == group]
            stopped = {
                (r["topic"], r["partition"]) for r in await tx.fetch(QUERIES["stopped_places"]) if r["group"] == group
            }
        next_ = {(row["topic"], row["partition"]): row["next"] for row in rows}
        return {
            place: replace(span, low=max(span.low, next_.get(place, span.low)))
            for place, span in log.of(topics).items()
            if place not in stopped
        }


async def _only(record: Record) -> Any:
    yield record


async def catch_up(context: ProcessContext, settings: Settings, starts: Mapping[Place, int]) -> None:
    """Bring a database that had gone back up to the log; `context` has the pool of this alone.

    Raises:
        UnavailableError: a service does not answer, or the time has run out.
    """
    found = Restored(None)
    time_limit = TimeLimit(unfinished="did not end")
    async with time_limit.part("the catch-up"):
        say = partial(_log.info, "catching_up")
        await CatchUp(context, settings, time_limit, lambda step: say(step=step)).run(
            await log_now(context), starts, found
        )
    _log.info("caught_up", events=found.events, versions_renewed=found.renewed, **found.counts)
