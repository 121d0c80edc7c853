"""The sinks of jobs on real parts: one row a job, limits decided in the order of the log, what ended stays ended."""

from __future__ import annotations

import asyncio
import base64
import uuid
from dataclasses import replace
from decimal import Decimal
from typing import Any

import orjson
import pytest

from highwater.connectors.identity import organizations
from highwater.connectors.identity.sink_users import UsersSink
from highwater.connectors.jobs import counting
from highwater.connectors.jobs.sink_controls import JobControlsSink
from highwater.connectors.jobs.sink_jobs import JobsSink
from highwater.connectors.jobs.store import job_of
from highwater.connectors.jobs.usage import usage_of
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.records import Event
from highwater.connectors.models.calls import BUILT_IN
from highwater.connectors.postgres.pool import transaction
from highwater.connectors.slices import ERASURE
from highwater.schemas.feeds import USER_ERASED
from highwater.schemas.jobs import CHECKPOINT_SAVED, CONTROL, JOB_SUBMITTED, PROGRESS, USAGE_RECORDED
from highwater.streams.clock import to_datetime
from highwater.streams.identity.plans import PLANS, Usage
from highwater.streams.jobs.jobs import period_of
from highwater.streams.jobs.states import ENDED, REQUESTED, JobStatus, Kind
from tests.conftest import Stack
from tests.integration.connecting import (
    Speaker,
    fresh,
    in_outbox,
    in_transaction,
    running,
    send,
    until,
)
from tests.integration.jobs.watching import new_id

# The middle of a month.
NOW_MS = 1_731_672_000_000
MIB = 1 << 20


class Customer(Speaker):
    """An organization with a user, the events of their jobs, and the stored state."""

    def __init__(self, context: ProcessContext) -> None:
        super().__init__(
            context,
            {
                JOB_SUBMITTED: JobsSink(context, PLANS),
                CONTROL: JobControlsSink(context, PLANS),
                USER_ERASED: UsersSink(context.codec, context.clock, ERASURE, dimensions=384),
            },
        )
        self.id, self.user = fresh("org"), fresh("user")

    def wants(self, kind: str = "generation", *, at: int | None = None, args: Any = None, **changes: Any) -> Event:
        """A submission."""
        given = args or {
            "generation": {"query": "What is a log?"},
            "ingestion": {"document_ids": ["a1" * 32], "ns": "docs", "slot": "main"},
            "export": {"presentation_id": new_id(), "format": "pptx"},
        }.get(kind, {})
        value = {
            "job_id": new_id(),
            "kind": kind,
            "organization_id": self.id,
            "user_id": self.user,
            "args": given if isinstance(given, str) else orjson.dumps(given).decode(),
            "ts": 1,
            "expires_at": None,
            **changes,
        }
        return self.says(JOB_SUBMITTED, value, at=at)

    def controls(self, job_id: str, action: str = "revoke", reason: str = "", outline: Any = None) -> Event:
        """A control."""
        said = None if outline is None else orjson.dumps(outline).decode()
        return self.says(CONTROL, {"job_id": job_id, "action": action, "reason": reason, "ts": 1, "outline": said})

    def erased(self, *, at: int | None = None) -> Event:
        """The user is to be erased."""
        return self.says(USER_ERASED, {"user_id": self.user, "ts": 1}, at=at)

    async def submitted(self, kind: str = "generation", **columns: Any) -> str:
        """Submit a job and have it stored, then as if the workers had brought it so far; its id."""
        one = self.wants(kind)
        assert await self.stores(one) == []
        await self.is_at(one.value["job_id"], **columns)
        return str(one.value["job_id"])

    async def is_at(self, job_id: str, **columns: Any) -> None:
        """As if the workers had brought a job so far."""
        for name, value in columns.items():
            query = f"UPDATE jobs SET {name} = $2 WHERE job_id = $1"
            assert await self.context.pool.execute(query, job_id, value) == "UPDATE 1"

    async def counted(self, job_id: str, *, at_ms: int = NOW_MS, decks: int = 1) -> None:
        """The usage of a job is counted, as at its end."""
        async with transaction(self.context.pool) as tx:
            await counting.count(tx, [counting.Ended(job_of(await self.row(job_id)), at_ms, decks)])

    async def has_called(self, job_id: str, model: str = "m", attempt: int = 1) -> None:
        """A call of a job that was answered: 120 tokens, 29 cents; the built-in model costs nothing."""
        await self.context.pool.execute(
            "INSERT INTO llm_calls (run_id, stage, attempt, user_id, model, prompt_ids, started_at, prompt_tokens, "
            "completion_tokens, cost_usd) VALUES ($1, 'outline', $3, NULL, $2, '{}', now(), 100, 20, $4)",
            job_id,
            model,
            attempt,
            Decimal(0) if model == BUILT_IN else Decimal("0.29"),
        )

    async def has(self, plan: str, status: str = "active") -> None:
        """A plan and a subscription, as the sink of organizations stores them."""
        await self.context.pool.execute(
            "INSERT INTO organizations VALUES ($1, $2, $3, NULL, 1, 'jobs.plan-changed/0/1', now())",
            self.id,
            plan,
            status,
        )

    async def rows(self) -> list[Any]:
        """Its jobs as they were submitted."""
        query = "SELECT *, job_id::text AS id FROM jobs WHERE organization_id = $1 ORDER BY arrived_ms"
        return list(await self.context.pool.fetch(query, self.id))

    async def row(self, job_id: str) -> Any:
        """One of them."""
        return await self.context.pool.fetchrow("SELECT * FROM jobs WHERE job_id = $1", job_id)

    async def published(self, topic: str, job_id: str) -> list[Any]:
        """Events that wait in the outbox, in their order; None for a tombstone."""
        return await in_outbox(self.context, topic, job_id)

    async def everything(self, job_id: str) -> Any:
        """All stored data of a job, and its published events."""
        topics = (*REQUESTED.values(), PROGRESS, CHECKPOINT_SAVED)
        return [await self.row(job_id), *[await self.published(topic, job_id) for topic in topics]]


@pytest.fixture(scope="module")
def context(context: ProcessContext) -> ProcessContext:
    """The shared resources of the sinks, with a stopped clock."""
    return replace(context, clock=lambda: NOW_MS)


@pytest.fixture
def customer(context: ProcessContext) -> Customer:
    """An organization of the test's own."""
    return Customer(context)


# -- submissions ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R2.38")
@pytest.mark.parametrize("kind", list(Kind))
async def test_a_submission_is_a_row_and_a_command_of_its_kind(customer: Customer, kind: Kind):
    """The row waits without a worker's epoch; the command, on the kind's own topic, has all that a worker needs (R2.39)."""
    one = customer.wants(kind, expires_at=NOW_MS + 5)
    assert await customer.stores(one) == []
    (row,) = await customer.rows()
    job_id, position = one.value["job_id"], str(one.record.position)
    assert (row["id"], row["kind"], row["user_id"], row["status"]) == (job_id, kind, customer.user, "pending")
    assert (row["epoch"], row["seq"], row["worker"], row["error"], row["completed_at"]) == (0, 0, None, None, None)
    assert (row["position"], row["caused_by"], row["expires_ms"]) == (position, position, NOW_MS + 5)
    assert orjson.loads(row["args"]) == orjson.loads(one.value["args"])
    assert row["created_at"] == row["updated_at"] == to_datetime(NOW_MS)
    (command,) = await customer.published(REQUESTED[kind], job_id)
    same = ("job_id", "organization_id", "user_id", "args", "expires_at")
    assert {name: command[name] for name in same} == {name: one.value[name] for name in same}
    assert await customer.published(PROGRESS, job_id) == []
    for other in set(Kind) - {kind}:
        assert await customer.published(REQUESTED[other], job_id) == []


async def test_a_job_is_one_job_however_often_it_comes(customer: Customer):
    """The same submission again, in a batch and later and in another notation, changes nothing and is not a dead letter."""
    one = customer.wants(args='{"query": "What is a log?"}')
    again = customer.says(JOB_SUBMITTED, {**one.value, "args": '{ "slides":10,"query":"What is a log?"}', "ts": 2})
    assert await customer.stores(one, one, again) == []
    before = await customer.everything(one.value["job_id"])
    assert await customer.stores(again, one) == []
    assert before == await customer.everything(one.value["job_id"])
    assert len(await customer.rows()) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"args": '{"query": "another"}'},
        {"user_id": "another"},
        {"organization_id": "another"},
        {"expires_at": 7},
        {"kind": "export", "args": '{"presentation_id": "0b5e3f5e-6a40-4a2b-9d5a-0d3c0f6a1c11", "format": "pdf"}'},
    ],
)
async def test_another_job_under_a_known_id_is_refused(customer: Customer, changes: dict[str, Any]):
    """Any difference makes it a dead letter, within a batch and later; neighbours are stored."""
    one = customer.wants()
    other = customer.says(JOB_SUBMITTED, {**one.value, **changes})
    assert await customer.stores(one, other, customer.wants()) == ["conflicting_repeat"]
    before = await customer.everything(one.value["job_id"])
    assert await customer.stores(other) == ["conflicting_repeat"]
    assert before == await customer.everything(one.value["job_id"])
    assert len(await customer.rows()) == 2


async def test_bad_submissions_are_dead_and_those_around_them_count(customer: Customer):
    """An unknown kind, args that are not JSON, a field that is not the kind's: each by name, neighbours are stored."""
    bad = [
        customer.wants("dream"),
        customer.wants(args="{"),
        customer.wants(args={"query": "x", "pages": 3}),
        customer.wants(args={"query": "x", "slides": 51}),
        customer.wants(job_id="No-UUID"),
    ]
    assert await customer.stores(customer.wants(), *bad, customer.wants()) == [
        "unknown_kind", "args_not_json", "unknown_field", "bad_slides", "bad_uuid",
    ]  # fmt: skip
    assert len(await customer.rows()) == 2


# -- limits --------------------------------------------------------------------------------------------------------------


async def _is_refused(customer: Customer, one: Event, limit: str) -> None:
    row = await customer.row(one.value["job_id"])
    assert (row["status"], row["seq"], row["epoch"], row["completed_at"]) == ("failed", 1, 0, to_datetime(NOW_MS))
    assert limit in row["error"]
    assert customer.id in row["error"]
    (told,) = await customer.published(PROGRESS, one.value["job_id"])
    assert (told["event_type"], told["seq"], told["progress_pct"]) == ("error", 1, 0)
    assert told["error_message"] == row["error"]
    assert await customer.published(REQUESTED[Kind(one.value["kind"])], one.value["job_id"]) == []


@pytest.mark.parametrize("kind", list(Kind))
async def test_a_suspended_organization_may_nothing(customer: Customer, kind: Kind):
    """Its job is a row that failed, with the reason that its watchers get, and without a command."""
    await customer.has("team", "suspended")
    one = customer.wants(kind)
    assert await customer.stores(one) == []
    await _is_refused(customer, one, "suspended")
    before = await customer.everything(one.value["job_id"])
    assert await customer.stores(one) == []
    assert before == await customer.everything(one.value["job_id"])


@pytest.mark.requirement("R2.33")
async def test_who_is_past_due_makes_no_new_decks_and_uses_those_there_are(customer: Customer):
    """R2.33: a generation fails, an export continues."""
    await customer.has("team", "past_due")
    deck, export = customer.wants(), customer.wants("export")
    assert await customer.stores(deck, export) == []
    await _is_refused(customer, deck, "past_due")
    assert (await customer.row(export.value["job_id"]))["status"] == "pending"


async def test_a_month_holds_no_more_decks_than_its_plan_says(customer: Customer):
    """In one batch and over batches at once the first five of a free organization pass, in the order of the log."""
    wanted = [customer.wants() for _ in range(4)]
    assert await customer.stores(*reversed(wanted)) == []
    others = [customer.wants() for _ in range(6)]
    work = [in_transaction(customer.context, JobsSink(customer.context, PLANS), [one]) for one in others]
    await asyncio.gather(*work)
    assert [row["status"] for row in await customer.rows()][:4] == ["pending"] * 4
    refused = [one for one in others if (await customer.row(one.value["job_id"]))["status"] == "failed"]
    assert (len(await customer.rows()), len(refused)) == (10, 5)
    await _is_refused(customer, refused[0], "max_presentations_per_month")


async def test_who_decides_on_the_last_deck_of_a_month_decides_alone(customer: Customer, context: ProcessContext):
    """A batch that looks while another's decks are not yet committed waits for them, and counts them."""
    for _ in range(4):
        await customer.submitted()
    sink, last, refused = JobsSink(context, PLANS), customer.wants(), customer.wants()
    async with context.pool.acquire() as tx, tx.transaction():
        assert await sink.apply(tx, [last], await sink.prepare([last])) == []
        other = asyncio.create_task(in_transaction(context, sink, [refused]))
        query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = 7424"
        await until(lambda: tx.fetchval(query), "the other one waits")
        assert not other.done()
    assert await other == []
    assert (await customer.row(last.value["job_id"]))["status"] == "pending"
    await _is_refused(customer, refused, "max_presentations_per_month")


async def test_what_is_counted_of_a_month(customer: Customer):
    """Decks of another month, failed ones, and other kinds do not count; those in progress do."""
    before_ms = NOW_MS - 20 * 86_400_000
    before = to_datetime(before_ms)
    earlier = await customer.submitted(status="completed", created_at=before, completed_at=before)
    await customer.counted(earlier, at_ms=before_ms)
    await customer.submitted(status="failed", completed_at=to_datetime(NOW_MS))
    await customer.submitted("export")
    await customer.submitted(status="running", created_at=before)
    await customer.counted(
        await customer.submitted(status="completed", created_at=before, completed_at=to_datetime(NOW_MS))
    )
    wanted = [customer.wants() for _ in range(4)]
    assert await customer.stores(*wanted) == []
    assert [(await customer.row(one.value["job_id"]))["status"] for one in wanted] == ["pending"] * 3 + ["failed"]


async def test_tokens_of_the_month_are_a_limit(customer: Customer):
    """Used tokens, also those of a failed deck, leave nothing for the next one."""
    failed = await customer.submitted(status="failed", tokens=99_999, completed_at=to_datetime(NOW_MS))
    await customer.counted(failed, decks=0)
    last, refused = customer.wants(), customer.wants()
    assert await customer.stores(last) == []
    await customer.is_at(last.value["job_id"], status="completed", tokens=1, completed_at=to_datetime(NOW_MS))
    await customer.counted(last.value["job_id"])
    assert await customer.stores(refused) == []
    await _is_refused(customer, refused, "ai_tokens_per_month")


async def test_what_was_flushed_counts_although_its_jobs_are_gone(customer: Customer):
    """The erasure of a user does not reset the month."""
    await customer.context.pool.execute(
        "INSERT INTO usage_records VALUES ($1, $2, 5, 50, 10, 1, 5, now())", customer.id, period_of(NOW_MS)
    )
    one = customer.wants()
    assert await customer.stores(one) == []
    await _is_refused(customer, one, "max_presentations_per_month")


async def test_a_document_may_be_as_large_as_the_plan_says(customer: Customer):
    """10 MiB pass for a free organization, a byte more does not; for a team it does."""
    sizes = {uuid.uuid4().hex * 2: 10 * MIB, uuid.uuid4().hex * 2: 10 * MIB + 1}
    for sha256, size in sizes.items():
        query = "INSERT INTO blobs (sha256, size_bytes, created_at) VALUES ($1, $2, now())"
        await customer.context.pool.execute(query, sha256, size)
    fits, large = sizes
    deck = customer.wants(args={"query": "x", "source_document_ids": [fits]})
    both = customer.wants("ingestion", args={"document_ids": [fits, large], "ns": "a", "slot": "b"})
    assert await customer.stores(deck, both) == []
    assert (await customer.row(deck.value["job_id"]))["status"] == "pending"
    await _is_refused(customer, both, "max_file_size_mb")
    await customer.has("team")
    team = customer.wants(args={"query": "x", "source_document_ids": [large]})
    assert await customer.stores(team) == []
    assert (await customer.row(team.value["job_id"]))["status"] == "pending"


async def test_a_brand_kit_needs_a_plan_that_has_it(customer: Customer):
    """A free organization is refused by name of the limit, a team is not; without a kit no organization is."""
    args = {"presentation_id": str(uuid.uuid4()), "format": "pdf"}
    branded = customer.wants("export", args={**args, "brand_kit": {"primary": "#112233"}})
    plain = customer.wants("export", args=args)
    assert await customer.stores(branded, plain) == []
    await _is_refused(customer, branded, "features")
    assert (await customer.row(plain.value["job_id"]))["status"] == "pending"
    await customer.has("team")
    again = customer.wants("export", args={**args, "brand_kit": {"primary": "#112233"}})
    assert await customer.stores(again) == []
    assert (await customer.row(again.value["job_id"]))["status"] == "pending"


# -- controls ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R2.40")
@pytest.mark.parametrize("status", [JobStatus.PENDING, JobStatus.RUNNING])
async def test_a_revoked_job_ends(customer: Customer, status: JobStatus):
    """In any state: taken from its worker by the epoch, published to its watchers once, its checkpoint removed (R2.40)."""
    state = {"epoch": 3, "seq": 7, "progress_pct": 46, "due_ms": 6, "checkpoint": '{"outline": {}}'}
    held = {"worker": 7, "lease_until_ms": 5} if status is JobStatus.RUNNING else {}
    job_id = await customer.submitted(status=status, **state, **held)
    assert await customer.stores(customer.controls(job_id, reason="not wanted"), customer.controls(job_id)) == []
    row = await customer.row(job_id)
    assert (row["status"], row["error"], row["epoch"], row["seq"]) == ("revoked", "revoked: not wanted", 4, 8)
    assert (row["worker"], row["lease_until_ms"], row["due_ms"], row["checkpoint"]) == (None,) * 4
    assert row["completed_at"] == to_datetime(NOW_MS)
    (told,) = await customer.published(PROGRESS, job_id)
    assert (told["event_type"], told["seq"], told["progress_pct"]) == ("error", 8, 46)
    assert told["error_message"] == "revoked: not wanted"
    assert await customer.published(CHECKPOINT_SAVED, job_id) == [None]
    before = await customer.everything(job_id)
    assert await customer.stores(customer.controls(job_id), customer.controls(job_id, "republish")) == []
    assert before == await customer.everything(job_id)


async def test_a_revoked_job_keeps_what_its_calls_used(customer: Customer):
    """They were paid for, so they count for the month: once, for its limit, for every reader and in the log."""
    job_id = await customer.submitted(status="running", epoch=1, worker=7)
    await customer.has_called(job_id)
    assert await customer.stores(customer.controls(job_id), customer.controls(job_id)) == []
    row = await customer.row(job_id)
    assert (row["tokens"], float(row["cost_usd"]), row["cost_cents"], row["error"]) == (120, 0.29, 29, "revoked")
    used = await usage_of(customer.context.pool, customer.id, period_of(NOW_MS))
    assert (used.presentations, used.tokens, used.cost_cents, used.upto_seq) == (0, 120, 29, 1)
    limit = await _used_for_limits(customer)
    assert (limit.presentations, limit.tokens) == (0, 120)
    (told,) = await customer.published(USAGE_RECORDED, customer.id)
    assert (told["job_id"], told["seq"], told["presentations"], told["tokens"], told["cost_cents"]) == (
        job_id,
        1,
        0,
        120,
        29,
    )


async def test_tokens_of_the_built_in_model_use_up_no_plan(customer: Customer):
    """They cost nothing: they are shown and in the log, and the limit of tokens counts the others only."""
    job_id = await customer.submitted(status="running", epoch=1, worker=7)
    await customer.has_called(job_id, BUILT_IN)
    await customer.has_called(job_id, attempt=2)
    assert await customer.stores(customer.controls(job_id)) == []
    used = await usage_of(customer.context.pool, customer.id, period_of(NOW_MS))
    assert (used.tokens, used.built_in_tokens, used.cost_cents) == (240, 120, 29)
    assert (await _used_for_limits(customer)).tokens == 120
    (told,) = await customer.published(USAGE_RECORDED, customer.id)
    assert (told["tokens"], told["built_in_tokens"]) == (240, 120)
    # A later end of the same work counts only the additional usage.
    await customer.has_called(job_id, attempt=3)
    async with transaction(customer.context.pool) as tx:
        ended = counting.Ended(replace(job_of(await customer.row(job_id)), tokens=360), NOW_MS)
        (again,) = (await counting.count(tx, [ended])).values()
    assert (again["tokens"], again["built_in_tokens"]) == (120, 0)
    assert (await _used_for_limits(customer)).tokens == 240


async def _used_for_limits(customer: Customer) -> Usage:
    async with transaction(customer.context.pool) as tx:
        return (await organizations.usages_of(tx, [customer.id], NOW_MS))[customer.id]


async def test_an_erased_job_under_way_is_counted(customer: Customer):
    """Its calls were paid, although the job and its calls are gone."""
    job_id = await customer.submitted(status="running", epoch=1, worker=7)
    await customer.has_called(job_id)
    assert await customer.stores(customer.erased()) == []
    assert (await _used_for_limits(customer)).tokens == 120
    (told,) = await customer.published(USAGE_RECORDED, customer.id)
    assert (told["seq"], told["tokens"], told["cost_cents"]) == (1, 120, 29)


async def test_a_failed_job_is_restarted(customer: Customer):
    """It waits with its checkpoint and its published progress; its calls continue from their number, and its watchers are
    notified.
    """
    state = {"epoch": 3, "seq": 7, "progress_pct": 46, "attempt": 3, "unusable": 1, "returns": 2, "tokens": 120}
    job_id = await customer.submitted(
        status="failed", error="no", checkpoint='{"outline": {"x": 1}}', completed_at=to_datetime(NOW_MS), **state
    )
    await customer.counted(job_id, decks=0)
    again = [customer.controls(job_id, "restart") for _ in range(2)]
    assert await customer.stores(*again) == []
    row = await customer.row(job_id)
    assert (row["status"], row["error"], row["completed_at"], row["epoch"], row["seq"]) == ("pending", None, None, 4, 8)
    assert (row["attempt"], row["attempts_before"], row["unusable"], row["returns"]) == (3, 3, 0, 0)
    assert (orjson.loads(row["checkpoint"]), row["progress_pct"]) == ({"outline": {"x": 1}}, 46)
    assert row["caused_by"] == str(again[0].record.position)
    (told,) = await customer.published(PROGRESS, job_id)
    assert (told["event_type"], told["seq"], told["progress_pct"]) == ("job_restarted", 8, 46)
    (saved,) = await customer.published(CHECKPOINT_SAVED, job_id)
    assert (saved["status"], saved["epoch"]) == ("running", 4)
    assert len(await customer.published(REQUESTED[Kind.GENERATION], job_id)) == 2
    assert await customer.stores(customer.controls(job_id), customer.controls(job_id, "restart")) == []
    assert (await customer.row(job_id))["status"] == "revoked"


async def test_a_job_restarted_and_revoked_in_one_batch_is_revoked(customer: Customer):
    """In the order of the log, each from where the one before left it."""
    job_id = await customer.submitted(status="failed", completed_at=to_datetime(NOW_MS))
    said = [customer.controls(job_id, action) for action in ("revoke", "restart", "republish", "revoke", "restart")]
    assert await customer.stores(*said) == []
    row = await customer.row(job_id)
    assert (row["status"], row["seq"], row["epoch"]) == ("revoked", 2, 2)
    assert [one["event_type"] for one in await customer.published(PROGRESS, job_id)] == ["job_restarted", "error"]


async def test_a_restart_is_judged_as_a_new_job(customer: Customer):
    """If the month is used up, or the organization is suspended, the job stays failed with the limit as its error; watchers are
    notified.
    """
    failed = await customer.submitted(status="failed", error="no", completed_at=to_datetime(NOW_MS))
    used = await customer.submitted(status="completed", completed_at=to_datetime(NOW_MS))
    await customer.counted(used, decks=4)
    for wanted, status in ((failed, "pending"), (None, "failed")):
        job_id = wanted or await customer.submitted("generation", status="failed", completed_at=to_datetime(NOW_MS))
        assert await customer.stores(customer.controls(job_id, "restart")) == []
        row = await customer.row(job_id)
        assert row["status"] == status
    assert "max_presentations_per_month" in row["error"]
    (told, *_) = await customer.published(PROGRESS, job_id)
    assert (told["event_type"], told["error_message"]) == ("error", row["error"])
    assert row["completed_at"] == to_datetime(NOW_MS)


@pytest.mark.parametrize("status", sorted(ENDED))
async def test_what_ended_stays_ended(customer: Customer, status: JobStatus):
    """A control that comes late changes nothing."""
    job_id = await customer.submitted(status=status)
    before = await customer.everything(job_id)
    late = ["revoke", "republish", *(["restart"] if status is not JobStatus.FAILED else [])]
    assert await customer.stores(*(customer.controls(job_id, action) for action in late)) == []
    assert before == await customer.everything(job_id)


@pytest.mark.requirement("R2.41")
async def test_a_job_that_waits_is_asked_for_again(customer: Customer):
    """One command more for any number of requests in a batch; a running one is left to its worker (R2.41)."""
    waits, runs = await customer.submitted("export"), await customer.submitted("export", status="running")
    again = [customer.controls(job_id, "republish") for job_id in (waits, runs, waits)]
    assert await customer.stores(*again) == []
    counts = [len(await customer.published(REQUESTED[Kind.EXPORT], job_id)) for job_id in (waits, runs)]
    assert counts == [2, 1]
    first, second = await customer.published(REQUESTED[Kind.EXPORT], waits)
    assert orjson.loads(first.pop("args")) == orjson.loads(second.pop("args"))
    assert first == second


async def test_a_job_that_is_revoked_in_the_batch_is_not_asked_for(customer: Customer):
    """The revocation holds, whichever was said first."""
    job_id = await customer.submitted()
    assert await customer.stores(customer.controls(job_id, "republish"), customer.controls(job_id)) == []
    assert len(await customer.published(REQUESTED[Kind.GENERATION], job_id)) == 1
    assert (await customer.row(job_id))["status"] == "revoked"


async def test_a_control_waits_for_its_submission(customer: Customer, stack: Stack, context: ProcessContext):
    """A revocation that is read while submissions wait to be stored takes effect once they are; one of no job is dead."""
    wanted, nowhere = customer.wants(), new_id()
    controls = [customer.controls(wanted.value["job_id"]), customer.controls(nowhere)]
    for topic, values in ((CONTROL, controls), (JOB_SUBMITTED, [wanted])):
        encoded = [(one.value["job_id"].encode(), context.codec.encode(topic, one.value)) for one in values]
        send(stack.kafka, topic, encoded)
    consumer = BatchConsumer(JobControlsSink(context, PLANS), context)
    stop = asyncio.Event()
    task = asyncio.create_task(consumer.run(stop))
    try:
        await until(lambda: "submissions behind" in (consumer.problem or ""), "it waits and says why")
        async with running(BatchConsumer(JobsSink(context, PLANS), context)):

            async def is_revoked() -> bool:
                return [row["status"] for row in await customer.rows()] == ["revoked"]

            await until(is_revoked, "the job is revoked")

            async def letters() -> list[Any]:
                query = "SELECT headers FROM outbox WHERE topic = $1 AND key = $2"
                return list(await context.pool.fetch(query, CONTROL + ".dlq", nowhere.encode()))

            (letter,) = await until(letters, "the other one is a dead letter")
    finally:
        stop.set()
        await task
    assert base64.b64decode(dict(orjson.loads(letter["headers"]))["dlq_reason"]) == b"unknown_job"


# -- erasures ------------------------------------------------------------------------------------------------------------


async def test_an_erasure_takes_a_users_jobs_and_decks_and_nobody_elses(customer: Customer, context: ProcessContext):
    """Rows, decks and calls of the user are removed, watchers of jobs in progress are notified; another user's stay."""
    other = Customer(context)
    other.id = customer.id
    done, runs = await customer.submitted(status="completed"), await customer.submitted(status="running", seq=4)
    kept = await other.submitted(status="completed")
    for job_id, user in ((done, customer.user), (kept, other.user)):
        await context.pool.execute(
            "INSERT INTO presentations VALUES ($1, $2, $3, 'title', '[]', 'jobs.job-submitted/0/1', now())",
            job_id, customer.id, user,
        )  # fmt: skip
        await context.pool.execute("INSERT INTO presentation_shares VALUES ($1, 3)", job_id)
    assert await customer.stores(customer.erased()) == []
    assert [row["id"] for row in await customer.rows()] == [kept]
    for table in ("presentations", "presentation_shares"):
        query = f"SELECT presentation_id::text FROM {table} WHERE presentation_id::text = ANY ($1::text[])"
        assert [row["presentation_id"] for row in await context.pool.fetch(query, [done, kept])] == [kept]
    (told,) = await customer.published(PROGRESS, runs)
    assert (told["event_type"], told["seq"], told["error_message"]) == ("error", 5, "the user was erased")
    assert await customer.published(PROGRESS, done) == []
    assert [await customer.published(CHECKPOINT_SAVED, job_id) for job_id in (done, runs, kept)] == [[None], [None], []]


async def test_an_erasure_takes_an_edited_outline(customer: Customer):
    """It is in the row and in the checkpoint alone, and both go; an approval that comes later finds no job."""
    state = {"epoch": 1, "seq": 1, "checkpoint": '{"outline": {"slides": []}}', "approval_until_ms": NOW_MS + 1}
    job_id = await customer.submitted(status="running", **state)
    mine = {"title": "Mine", "slides": [{"title": "A secret", "points": []}]}
    assert await customer.stores(customer.controls(job_id, "approve", outline=mine)) == []
    row = await customer.row(job_id)
    assert (row["status"], row["approval_until_ms"], row["steps_total"]) == ("pending", None, 1)
    (saved,) = await customer.published(CHECKPOINT_SAVED, job_id)
    assert "A secret" in saved["outline"]
    assert len(await customer.published(REQUESTED[Kind.GENERATION], job_id)) == 2
    assert await customer.stores(customer.erased()) == []
    assert await customer.row(job_id) is None
    assert (await customer.published(CHECKPOINT_SAVED, job_id))[-1] is None
    assert await customer.stores(customer.controls(job_id, "approve", outline=mine)) == ["unknown_job"]


async def test_an_erasure_is_not_undone_by_reading_the_log_again(customer: Customer):
    """A submission of before it is void whenever it is read; one of after it counts."""
    early = customer.wants()
    assert await customer.stores(early) == []
    assert await customer.stores(customer.erased()) == []
    assert await customer.stores(early, customer.wants()) == []
    assert early.value["job_id"] not in [row["id"] for row in await customer.rows()]
    assert len(await customer.rows()) == 1
