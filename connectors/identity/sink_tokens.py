"""The sink of tokens used outside jobs and queries: counts what searches have embedded for the paying organization
(R2.36).

Invariant. Counts, their `jobs.usage-recorded` and the positions are one transaction, and a use is counted once by its
id: a redelivered event, or one that an API published again without its first acknowledgement, changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from highwater.connectors.identity import metering
from highwater.connectors.identity.metering import Used
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.checking import divided
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.outbox import OutboxFactory
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.jobs import TOKENS_USED, USAGE_RECORDED, TokensUsed
from highwater.streams.jobs.validation import check_jobs_event


class Prepared(NamedTuple):
    """Valid events by the id of their use, and refused events."""

    uses: dict[str, Event[TokensUsed]]
    dead: list[DeadLetter]


class TokensSink(Handler[TokensUsed, Prepared]):
    """Counts each use in the month of its organization, with the meter of jobs and queries."""

    group = "tokens"
    topics = (TOKENS_USED,)
    # Each is a round trip under the row of its organization's month, for which the ends of its jobs and queries wait.
    batch_max = 200

    def __init__(self, context: ProcessContext) -> None:
        self._tell = OutboxFactory(context.codec, "/connectors/sinks/tokens")

    async def prepare(self, events: Sequence[Event[TokensUsed]]) -> Prepared:
        """Check the events, and keep the first of each use."""
        good, dead = divided(events, check_jobs_event)
        uses: dict[str, Event[TokensUsed]] = {}
        for event in good:
            uses.setdefault(event.value["use_id"], event)
        return Prepared(uses, dead)

    async def apply(
        self, tx: Connection, events: Sequence[Event[TokensUsed]], prepared: Prepared
    ) -> Sequence[DeadLetter]:
        """Count what was not counted before."""
        counted = await metering.count(tx, [_used(event.value) for event in prepared.uses.values()])
        rows = [
            self._tell.row(USAGE_RECORDED, usage, usage["at"], prepared.uses[use_id].record.position)
            for use_id, usage in counted.items()
        ]
        await outbox.add(tx, rows)
        return prepared.dead


def _used(event: TokensUsed) -> Used:
    return Used(event["organization_id"], event["use_id"], event["ts"], event["tokens"], event["cost_cents"])
