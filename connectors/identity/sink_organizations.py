"""The sink of organizations: plans, and roles of users (R2.9, R2.34).

Invariants. PostgreSQL first: the change is committed, then the copy of the limits and the sessions in Redis are
deleted, and only then is the event accounted for; while Redis is unavailable the event waits, and PostgreSQL has the
change already. Repeats change nothing, so what the administrator's request did at once is not repeated: later sessions
stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from highwater.connectors.identity import erasures, organizations, roles
from highwater.connectors.identity.organizations import Organizations
from highwater.connectors.identity.roles import Revocation, RoleWord
from highwater.connectors.identity.sessions import SessionStore
from highwater.connectors.kafka.checking import divided
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.records import DeadLetter, Event, of_topic
from highwater.connectors.postgres.pool import Connection, transaction
from highwater.connectors.redis.link import RedisLink
from highwater.schemas.jobs import PLAN_CHANGED, ROLE_CHANGED, PlanChanged, RoleChanged
from highwater.schemas.positions import Cause
from highwater.streams.identity.plans import Plan
from highwater.streams.jobs.validation import check_jobs_event

Word: TypeAlias = PlanChanged | RoleChanged


class Prepared(NamedTuple):
    """Refused events; all else is stored by then."""

    dead: list[DeadLetter]


class OrganizationsSink(Handler[Word, Prepared]):
    """Stores one row per organization, and one per user's role; deletes outdated data in Redis."""

    group = "organizations"
    topics = (PLAN_CHANGED, ROLE_CHANGED)
    # Each user is a lock under which no session is created, and each organization and user a round trip to Redis.
    batch_max = 200

    def __init__(self, context: ProcessContext, link: RedisLink, plans: Mapping[str, Plan]) -> None:
        self._clock = context.clock
        self._pool = context.pool
        self._organizations = Organizations(link, lambda: context.pool, plans)
        self._sessions = SessionStore(link, lambda: context.pool)

    async def prepare(self, events: Sequence[Event[Word]]) -> Prepared:
        """Check the events, store what is new, and delete outdated data in Redis."""
        good, dead = divided(events, check_jobs_event)
        plans, changed = of_topic(good, PLAN_CHANGED), of_topic(good, ROLE_CHANGED)
        for revocation in await self._store(plans, changed):
            await roles.tell(self._sessions, revocation)
        for name in sorted({event.value["organization_id"] for event in plans}):
            await self._organizations.forget(name)
        return Prepared(dead)

    async def apply(self, tx: Connection, events: Sequence[Event[Word]], prepared: Prepared) -> Sequence[DeadLetter]:
        """Store only the positions: the effects had to be stored before Redis was updated."""
        return prepared.dead

    async def _store(
        self, plans: Sequence[Event[PlanChanged]], changed: Sequence[Event[RoleChanged]]
    ) -> list[Revocation]:
        if not plans and not changed:
            return []
        async with transaction(self._pool) as tx:
            valid = await erasures.valid(tx, changed) if changed else []
            now_ms = self._clock()
            if plans:
                await organizations.store_words(tx, list(map(organizations.plan_word, plans)), now_ms)
            return await roles.store_words(tx, _last_words(valid), now_ms) if valid else []


def _last_words(events: Sequence[Event[RoleChanged]]) -> dict[str, RoleWord]:
    """Return the last event of each user."""
    words: dict[str, RoleWord] = {}
    for record, value in events:
        word = RoleWord(value["role"], Cause(record.arrived_ms, str(record.position)))
        before = words.get(value["user_id"])
        if before is None or word.cause.order > before.cause.order:
            words[value["user_id"]] = word
    return words
