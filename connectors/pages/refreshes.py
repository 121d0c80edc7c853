"""The materializer of documents: builds what agents, sinks, the prewarm and operators request.

Invariants. A document without any request is not built on a change (no work before it is needed); a prewarm
builds the pages of a scope in any case (R4.32). Several requests in a batch for one document build it once. All
documents of a batch, the versions, the events and the positions are one transaction, in which no other document is
built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import asyncpg

from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event, Record
from highwater.connectors.pages import changes
from highwater.connectors.pages import rows as documents
from highwater.connectors.pages.maker import RELATIVES_MADE_MAX, BuildRequest, DocumentMaker
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.cache import INVALIDATION_REQUESTED, PREWARM_REQUESTED, InvalidationRequested, PrewarmRequested
from highwater.schemas.errors import UnavailableError
from highwater.schemas.league import RefreshRequested
from highwater.streams.pages.kinds import Resource
from highwater.streams.pages.rules import PageRules
from highwater.streams.telemetry import get_log

Asked: TypeAlias = RefreshRequested | PrewarmRequested | InvalidationRequested
_log = get_log("documents")


@dataclass(slots=True)
class Work:
    """The requests of a batch: documents by key with the reason of the last request, and refused events."""

    wanted: dict[str, str] = field(default_factory=dict)
    prewarmed: dict[str, str] = field(default_factory=dict)
    forced: dict[str, str] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    dead: list[DeadLetter] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    erased: set[str] = field(default_factory=set)


def work_of(rules: PageRules, events: Sequence[Event[Asked]]) -> Work:
    """Return the requests of a batch. For a document that is dropped and wanted in one batch the later request counts."""
    work = Work()
    for event in events:
        if prewarm := event.of(PREWARM_REQUESTED):
            # In the event a scope is called a season.
            pages = [page.key for page in rules.prewarmed_pages(prewarm["season"])]
            work.prewarmed.update(dict.fromkeys(pages, f"prewarm: {prewarm['reason']}"))
        elif invalidation := event.of(INVALIDATION_REQUESTED):
            if _are_known(rules, [invalidation["key"]], event.record, work):
                work.forced[invalidation["key"]] = "invalidation"
        elif refresh := event.of(rules.refresh_topic):
            _refresh(rules, refresh, event.record, work)
    return work


def _refresh(rules: PageRules, asked: RefreshRequested, record: Record, work: Work) -> None:
    if not _are_known(rules, [*asked["keys"], *asked["dropped"]], record, work):
        return
    work.wanted.update(dict.fromkeys(asked["keys"], asked["reason"]))
    work.dropped.difference_update(asked["keys"])
    work.dropped.update(asked["dropped"])
    for key in asked["dropped"]:
        work.wanted.pop(key, None)


def _are_known(rules: PageRules, keys: Sequence[str], record: Record, work: Work) -> bool:
    """Return whether all of these can be built; else refuse the event."""
    unknown = [key for key in keys if not rules.can_be_made(key)]
    if unknown:
        work.dead.append(DeadLetter(record, "unknown_document", f"there is no document {unknown[0]!r}"))
    return not unknown


class Refreshes(Handler[Asked, Work]):
    """Builds documents that have become stale."""

    group = "documents"
    # A season's import requests a few hundred documents of which few exist; building one takes milliseconds.
    batch_max = 500

    def __init__(self, maker: DocumentMaker, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self.topics = (maker.rules.refresh_topic, PREWARM_REQUESTED, INVALIDATION_REQUESTED)
        self._maker = maker
        self._rules = maker.rules
        self._pool = pool

    async def prepare(self, events: Sequence[Event[Asked]]) -> Work:
        """Group the requests by document."""
        return work_of(self._rules, events)

    async def apply(self, tx: Connection, events: Sequence[Event[Asked]], prepared: Work) -> Sequence[DeadLetter]:
        """Build requested documents that exist, those of a prewarm, and forced ones; delete those that end."""
        work = prepared
        await changes.hold_alone(tx)  # before checking what exists: first builds in progress are stored by then
        asked = await documents.existing(tx, sorted({*work.wanted, *work.dropped}))
        relatives = await self._maker.relatives(tx, work.wanted)
        wanted = {
            key: BuildRequest(self._known(key), "relative", is_dropped=number >= RELATIVES_MADE_MAX)
            for number, key in enumerate(relatives)
        }
        wanted |= {
            key: BuildRequest(self._known(key), work.wanted.get(key, "dropped"), is_dropped=key in work.dropped)
            for key in asked
        }
        wanted |= {key: BuildRequest(self._known(key), reason) for key, reason in work.prewarmed.items()}
        wanted |= {key: BuildRequest(self._known(key), reason, is_forced=True) for key, reason in work.forced.items()}
        made = await self._maker.make(tx, self._pool, list(wanted.values()), is_alone=True)
        work.erased = work.dropped.difference(asked)
        work.told = [*(one.resource.key for one in made if one.outcome.is_to_be_told), *sorted(work.erased)]
        return work.dead

    async def settle(self, prepared: Work) -> None:
        """Publish what is stored now, whether the transaction was committed or not."""
        if not prepared.told:
            return
        try:
            await self._maker.tell(self._pool, prepared.told, erased=prepared.erased)
        except UnavailableError as error:
            _log.warning("redis_not_updated", reason=str(error), effect="readers ask PostgreSQL")

    def _known(self, key: str) -> Resource:
        found = self._rules.page_of(key)
        assert found is not None, key  # `work_of` has refused the others
        return found
