"""The sink of queries: users' queries become runs of the pipeline, and administrators' prompts become its prompts.

Invariant: a request id is one run, however often it is sent; different content under a known id is refused. Runs of a
user have places without gaps in the order of the log. A run that is next on arrival waits for a slot from its own
transaction on: the submission is its command, and the agent learns that it need not send one. Whether the paying
organization has reached a limit is decided here, once, in the order of the log; a query beyond it is a failed run, with
the limit in its error, and calls no model. Of a role's prompts, the last in the order of the broker's time counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from highwater.connectors.engines.submissions import new_ones
from highwater.connectors.identity import erasures, organizations
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.checking import divided
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.outbox import OutboxFactory, OutboxRow
from highwater.connectors.kafka.records import DeadLetter, Event, of_topic
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import Connection, Row, notify
from highwater.connectors.queries.raw_logs import log_queries
from highwater.connectors.queries.rows import Ordinals
from highwater.connectors.queries.statements import QUERIES
from highwater.connectors.queries.store import CHANNEL
from highwater.connectors.queries.submissions import known_questions, question_of
from highwater.schemas.positions import Cause
from highwater.schemas.queries import (
    PIPELINE_STAGE,
    PROMPT_CHANGED,
    QUERY_SUBMITTED,
    RUN_FAILED,
    PromptChanged,
    QuerySubmitted,
)
from highwater.streams.clock import to_datetime
from highwater.streams.identity.plans import Plan, refusal, refusal_text
from highwater.streams.queries.runs import INSERT, Run, failed, failed_event, stage_event
from highwater.streams.queries.states import Status
from highwater.streams.queries.users import text_id, user_key
from highwater.streams.queries.validation import check_queries_event

_COLUMNS = [
    "id", "user_id", "user_text_id", "organization_id", "ordinal", "user_query", "status", "released", "error", "arrived_ms",
    "position", "caused_by", "command", "created_at", "updated_at",
]  # fmt: skip
LIMITED = "limit"
_OTHER = "another query, or another user's or organization's"


Said: TypeAlias = QuerySubmitted | PromptChanged


class Prepared(NamedTuple):
    """Valid events of a batch by kind, and refused ones."""

    submitted: list[Event[QuerySubmitted]]
    prompts: list[Event[PromptChanged]]
    dead: list[DeadLetter]


class Word(NamedTuple):
    """The last change of a role's prompt."""

    template: str
    is_active: bool
    cause: Cause


class QueriesSink(Handler[Said, Prepared]):
    """One row per run, one log line per query, one event per run; one row per prompt."""

    group = "queries"
    topics = (QUERY_SUBMITTED, PROMPT_CHANGED)
    # The fixed cost of one transaction (ten round trips and the fsync) spread over enough runs to be negligible. A
    # batch of the longest queries contains no more than the 32 MiB that wait in the client.
    batch_max = 2_000

    def __init__(self, context: ProcessContext, plans: Mapping[str, Plan]) -> None:
        self._clock = context.clock
        self._plans = plans
        self._tell = OutboxFactory(context.codec, "/connectors/sinks/queries")

    async def prepare(self, events: Sequence[Event[Said]]) -> Prepared:
        """Check the events (in a thread: counting tokens takes CPU)."""
        good, dead = await asyncio.to_thread(divided, events, check_queries_event)
        # A batch mixes partitions as they were fetched; places follow (partition, offset).
        submitted = of_topic(good, QUERY_SUBMITTED)
        submitted.sort(key=lambda event: (event.record.partition, event.record.offset))
        prompts = of_topic(good, PROMPT_CHANGED)
        prompts.sort(key=lambda event: _cause_of(event).order)
        return Prepared(submitted, prompts, dead)

    async def apply(self, tx: Connection, events: Sequence[Event[Said]], prepared: Prepared) -> Sequence[DeadLetter]:
        """Store new queries, publish them, and log them."""
        now_ms = self._clock()
        if prepared.prompts:
            await _store_prompts(tx, prepared.prompts, now_ms)
        refused: list[DeadLetter] = []
        if prepared.submitted:
            refused = await self._store(tx, await erasures.valid(tx, prepared.submitted), now_ms)
        return [*prepared.dead, *refused]

    async def _store(self, tx: Connection, events: Sequence[Event[QuerySubmitted]], now_ms: int) -> list[DeadLetter]:
        ordinals = await Ordinals.lock(tx, [event.value["user_id"] for event in events])
        submitted = [(event, question_of(event.value)) for event in events]
        found, refused = await new_ones(tx, submitted, known_questions, _id_of, _OTHER)
        new = [event for event, _ in found]
        if new:
            limits = await _limits(tx, new, self._plans, now_ms)
            runs = [_run_of(event, ordinals.take(event.value["user_id"]), limits, now_ms) for event in new]
            asked = await _first_in_turn(tx, runs)
            rows = [_row(run, event, now_ms, is_asked=run.id in asked) for run, event in zip(runs, new, strict=True)]
            await tx.copy_records_to_table("pipeline_runs", records=rows, columns=_COLUMNS)
            await ordinals.store(tx)
            if asked:
                await notify(tx, CHANNEL)
            await outbox.add(
                tx,
                [
                    row
                    for run, event in zip(runs, new, strict=True)
                    for row in self._told(run, event, now_ms, is_asked=run.id in asked)
                ],
            )
            await log_queries(tx, [run.id for run in runs])
        return refused

    def _told(self, run: Run, event: Event[QuerySubmitted], now_ms: int, *, is_asked: bool) -> list[OutboxRow]:
        at = event.record.position
        is_waiting = run.status is Status.NEW
        made = stage_event(run, INSERT, now_ms, waiting=is_waiting, requested=is_asked)
        rows = [self._tell.row(PIPELINE_STAGE, made, now_ms, at)]
        if not is_waiting:
            ended = failed_event(run, None, LIMITED, run.error or "", "", now_ms, is_alert=False)
            rows.append(self._tell.row(RUN_FAILED, ended, now_ms, at))
        return rows


async def _limits(
    tx: Connection, events: Sequence[Event[QuerySubmitted]], plans: Mapping[str, Plan], now_ms: int
) -> dict[str, str]:
    """Return the organizations that have reached a limit, each with the limit in words; locked, so that their jobs wait
    for this decision.
    """
    names = {name for event in events if (name := event.value.get("organization_id")) is not None}
    if not names:
        return {}
    await organizations.lock(tx, names)
    known = await organizations.organizations_of(tx, names, plans)
    used = await organizations.usages_of(tx, names, now_ms)
    found = {name: refusal(one.plan, one.status, used[name], is_query=True) for name, one in known.items()}
    return {name: refusal_text(limit, name, known[name].plan) for name, limit in found.items() if limit is not None}


def _run_of(event: Event[QuerySubmitted], ordinal: int, limits: Mapping[str, str], now_ms: int) -> Run:
    record, value = event
    organization_id = value.get("organization_id")
    run = Run(
        id=value["request_id"],
        user_id=value["user_id"],
        ordinal=ordinal,
        query=value["query"],
        status=Status.NEW,
        organization_id=organization_id,
        position=str(record.position),
    )
    error = limits.get(organization_id or "")
    return run if error is None else failed(run, error, now_ms)


async def _first_in_turn(tx: Connection, runs: Sequence[Run]) -> set[str]:
    """Return the new runs that may begin at once: the first of each user whose earlier runs have all released the user.

    The users are locked, so no run comes before these, and released runs stay released. The statement is separate, as
    it has to see what was committed while the lock was waited for.
    """
    first: dict[str, str] = {}
    for run in runs:
        if run.status is Status.NEW:
            first.setdefault(user_key(run.user_id), run.id)
    if not first:
        return set()
    busy = {row["user_id"] for row in await tx.fetch(QUERIES["users_with_unreleased_runs"], list(first))}
    return {run_id for key, run_id in first.items() if key not in busy}


def _row(run: Run, event: Event[QuerySubmitted], now_ms: int, *, is_asked: bool) -> tuple[Any, ...]:
    """Return a row in the order of `_COLUMNS`."""
    at = to_datetime(now_ms)
    stands = run.ordinal, run.query, run.status, run.released, run.error
    command = run.position if is_asked else None
    return (
        run.id,
        user_key(run.user_id),
        text_id(run.user_id),
        run.organization_id,
        *stands,
        event.record.arrived_ms,
        *[run.position] * 2,
        command,
        at,
        at,
    )


def _id_of(event: Event[QuerySubmitted]) -> str:
    return event.value["request_id"]


# -- prompts
# -------------------------------------------------------------------------------------------------------------


def _cause_of(event: Event[PromptChanged]) -> Cause:
    return Cause(event.record.arrived_ms, str(event.record.position))


async def _store_prompts(tx: Connection, events: Sequence[Event[PromptChanged]], now_ms: int) -> None:
    """Store changes of a role's prompt; at most the last one is active."""
    await tx.execute(QUERIES["hold_prompts"], LockClass.PROMPTS, 0)
    rows = await tx.fetch(QUERIES["prompts_of_roles"], sorted({event.value["role_name"] for event in events}))
    last = {row["role_name"]: _word_of(row) for row in rows}
    said: list[tuple[str, Word]] = []
    for event in events:
        role, word = event.value["role_name"], Word(*_said(event), _cause_of(event))
        if _changes(last.get(role), word):
            last[role] = word
            said.append((role, word))
    if said:
        await tx.execute(QUERIES["deactivate_prompts"], sorted({role for role, _ in said}))
        stored = [
            (role, word.template, word.is_active and word is last[role], word.cause.position, word.cause.arrived_ms)
            for role, word in said
        ]
        columns = map(list, zip(*stored, strict=True))
        await tx.execute(QUERIES["store_prompts"], *columns, [to_datetime(now_ms)] * len(stored))


def _word_of(row: Row) -> Word:
    return Word(row["prompt_template"], row["is_active"], Cause(row["arrived_ms"], row["position"]))


def _said(event: Event[PromptChanged]) -> tuple[str, bool]:
    return event.value["prompt_template"], event.value["is_active"]


def _changes(before: Word | None, word: Word) -> bool:
    """Return whether a change is newer and differs; removing an inactive prompt changes nothing."""
    if before is None:
        return word.is_active
    if word.cause.order <= before.cause.order:
        return False
    if before.is_active and word.is_active:
        return word.template != before.template
    return before.is_active or word.is_active
