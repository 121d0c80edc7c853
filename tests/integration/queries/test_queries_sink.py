"""The sinks of queries on real parts: one run a request, places in the order of the log, what ended stays ended."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from highwater.connectors.identity.sink_users import UsersSink
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.known import KnownIds
from highwater.connectors.kafka.records import Event
from highwater.connectors.queries.sink_controls import SUBMISSIONS, RunControlsSink
from highwater.connectors.queries.sink_queries import QueriesSink
from highwater.connectors.slices import ERASURE
from highwater.schemas.feeds import USER_ERASED
from highwater.schemas.queries import (
    PIPELINE_STAGE,
    PROMPT_CHANGED,
    QUERY_SUBMITTED,
    RUN_ARCHIVED,
    RUN_CONTROLLED,
    RUN_FAILED,
)
from highwater.streams.identity.plans import PLANS
from highwater.streams.queries.states import Stage, Status, waiting_status
from highwater.streams.queries.users import user_key
from highwater.streams.telemetry import RAW_LOG_FAILURES
from tests.conftest import Stack
from tests.integration.connecting import Speaker, in_outbox, in_transaction, running, send, until
from tests.integration.queries.pipeline import new_id

NOW_MS = 10**12


class Asker(Speaker):
    """A user, the events of its runs, and the stored state."""

    def __init__(self, context: ProcessContext) -> None:
        super().__init__(
            context,
            {
                QUERY_SUBMITTED: QueriesSink(context, PLANS),
                PROMPT_CHANGED: QueriesSink(context, PLANS),
                RUN_CONTROLLED: RunControlsSink(context),
                USER_ERASED: UsersSink(context.codec, lambda: NOW_MS, ERASURE, dimensions=384),
            },
        )
        self.id = new_id()

    def asks(self, query: str = "what is new?", *, partition: int = 0, at: int | None = None, **changes: Any) -> Event:
        """A submission."""
        value = {"request_id": new_id(), "user_id": self.id, "query": query, "ts": 1, **changes}
        return self.says(QUERY_SUBMITTED, value, partition=partition, at=at)

    def cancels(self, request_id: str, *, at: int | None = None, **changes: Any) -> Event:
        """A cancellation."""
        value = {
            "request_id": request_id,
            "user_id": self.id,
            "action": "cancel",
            "stage": None,
            "new_request_id": None,
        }
        return self.says(RUN_CONTROLLED, {**value, "ts": 1, **changes}, at=at)

    def restarts(self, request_id: str, stage: str, new_request: str | None = None, **changes: Any) -> Event:
        """A restart."""
        new = {"action": "restart", "stage": stage, "new_request_id": new_request or new_id(), **changes}
        return self.cancels(request_id, **new)

    def erased(self, *, at: int | None = None) -> Event:
        """The user is to be erased."""
        return self.says(USER_ERASED, {"user_id": self.id, "ts": 1}, at=at)

    async def asked(self, query: str = "what is new?") -> str:
        """Ask, and have it stored; the request."""
        one = self.asks(query)
        assert await self.stores(one) == []
        return str(one.value["request_id"])

    async def rows(self, table: str = "pipeline_runs") -> list[Any]:
        """Rows of the user in the order of places."""
        query = f"SELECT * FROM {table} WHERE user_id = $1 ORDER BY ordinal"
        return list(await self.context.pool.fetch(query, user_key(self.id)))

    async def places(self) -> dict[str, int]:
        """Request -> place."""
        return {str(row["id"]): row["ordinal"] for row in await self.rows()}

    async def published(self, topic: str, key: str | None = None) -> list[dict[str, Any]]:
        """Events that wait in the outbox, in their order."""
        return await in_outbox(self.context, topic, key or self.id)

    async def is_at(self, request_id: str, status: Status, **columns: Any) -> None:
        """As if the workers had brought a run so far."""
        columns = {"status": status, **columns}
        names = ", ".join(f"{name} = ${number}" for number, name in enumerate(columns, start=2))
        query = f"UPDATE pipeline_runs SET {names} WHERE id = $1"
        assert await self.context.pool.execute(query, request_id, *columns.values()) == "UPDATE 1"

    async def everything(self) -> Any:
        """All stored data of the user, and the published events."""
        return [await self.rows(), await self.rows("raw_logs"), await self.published(PIPELINE_STAGE)]


@pytest.fixture
def asker(context: ProcessContext) -> Asker:
    """A user of the test's own."""
    return Asker(context)


# -- submissions ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R1.14")
async def test_a_query_becomes_a_run(asker: Asker):
    """A submission is one run that waits, one line of the log and one event, all with its position."""
    one = asker.asks("line one\nline\ttwo")
    assert await asker.stores(one) == []
    (row,) = await asker.rows()
    position = str(one.record.position)
    assert (str(row["id"]), row["ordinal"], row["status"], row["user_query"]) == (
        one.value["request_id"], 1, "NEW", "line one\nline\ttwo",
    )  # fmt: skip
    assert (row["position"], row["caused_by"], row["revision"], row["released"]) == (position, position, 1, False)
    (line,) = await asker.rows("raw_logs")
    assert (line["message_type"], line["content"], line["pipeline_run_id"]) == (
        "user_query",
        row["user_query"],
        row["id"],
    )
    assert line["created_at"] == row["created_at"] == row["updated_at"]
    (told,) = await asker.published(PIPELINE_STAGE)
    assert {name: told[name] for name in ("id", "status", "operation", "attempt", "ordinal", "revision", "waiting")} == {
        "id": str(row["id"]), "status": "NEW", "operation": "INSERT", "attempt": 0, "ordinal": 1, "revision": 1, "waiting": True,
    }  # fmt: skip
    query = "SELECT headers FROM outbox WHERE topic = $1 AND key = $2"
    headers = await asker.context.pool.fetchval(query, PIPELINE_STAGE, asker.id.encode())
    found = {name: base64.b64decode(value).decode() for name, value in orjson.loads(headers)}
    assert found["ce_causedby"] == position


async def test_places_follow_the_log(context: ProcessContext):
    """Runs of many users in one batch have dense places in the order of partition and offset, and are published in it."""
    askers = [Asker(context) for _ in range(3)]
    batch = [one.asks(f"{n}", partition=n % 2) for n in range(10) for one in askers]
    assert await askers[0].stores(*reversed(batch)) == []
    assert await askers[0].stores(*(one.asks("last") for one in askers)) == []
    for one in askers:
        rows = await one.rows()
        assert [row["ordinal"] for row in rows] == list(range(1, 12))
        assert [row["user_query"] for row in rows] == ["0", "2", "4", "6", "8", "1", "3", "5", "7", "9", "last"]
        assert [told["ordinal"] for told in await one.published(PIPELINE_STAGE)] == list(range(1, 12))
        assert [line["ordinal"] for line in await one.rows("raw_logs")] == list(range(1, 12))


async def test_a_request_is_one_run_however_often_it_comes(asker: Asker):
    """The same submission again, in a batch and later, changes nothing and is not a dead letter."""
    one = asker.asks()
    assert await asker.stores(one, one) == []
    before = await asker.everything()
    assert await asker.stores(one) == []
    assert before == await asker.everything()


async def test_another_query_under_a_known_request_is_refused(asker: Asker, context: ProcessContext):
    """Another text or another user under a known id is a dead letter, within a batch and later; neighbours are stored."""
    other = Asker(context)
    one = asker.asks("first")
    same = {"request_id": one.value["request_id"]}
    assert (
        await asker.stores(one, asker.asks("second", **same), other.asks("first", **same), other.asks("own"))
        == ["conflicting_repeat"] * 2
    )
    assert (
        await asker.stores(asker.asks("third", **same), other.asks("first", **same), asker.asks("own"))
        == ["conflicting_repeat"] * 2
    )
    assert [row["user_query"] for row in await asker.rows()] == ["first", "own"]
    assert [(row["user_query"], row["ordinal"]) for row in await other.rows()] == [("own", 1)]


async def test_bad_submissions_are_dead_and_those_around_them_count(asker: Asker):
    """Each bad one is refused by name, its neighbours are stored."""
    bad = [asker.asks(" \n"), asker.asks("\x00"), asker.asks("x" * 40_000), asker.asks(request_id="No-UUID")]
    assert await asker.stores(asker.asks("a"), *bad, asker.asks("b")) == [
        "empty_text", "control_character", "too_long", "bad_uuid",
    ]  # fmt: skip
    assert [row["user_query"] for row in await asker.rows()] == ["a", "b"]


async def test_what_an_organization_may_not_is_a_run_that_failed(asker: Asker):
    """It is stored and published with the limit, blocks no other run, and is never requested; others of
    the batch are accepted.
    """
    await asker.context.pool.execute(
        "INSERT INTO organizations VALUES ('late', 'pro', 'suspended', NULL, 1, 'p', now()), "
        "('owing', 'pro', 'past_due', NULL, 1, 'p', now()) ON CONFLICT DO NOTHING"
    )
    names = ("late", "owing", "acme", None)
    batch = [asker.asks(f"q{number}", organization_id=name) for number, name in enumerate(names)]
    assert await asker.stores(*batch) == []
    rows = await asker.rows()
    assert [(row["status"], row["released"], row["organization_id"]) for row in rows] == [
        ("FAILED", True, "late"), ("FAILED", True, "owing"), ("NEW", False, "acme"), ("NEW", False, None),
    ]  # fmt: skip
    assert [row["error"].split(":")[0] for row in rows[:2]] == [
        "the organization late is suspended", "the organization owing is past_due",
    ]  # fmt: skip
    assert [(told["status"], told["waiting"]) for told in await asker.published(PIPELINE_STAGE)] == [
        ("FAILED", False), ("FAILED", False), ("NEW", True), ("NEW", True),
    ]  # fmt: skip
    for refused in batch[:2]:
        (failed,) = await asker.published(RUN_FAILED, refused.value["request_id"])
        assert (failed["reason"], failed["is_alert"]) == ("limit", False)
    repeated = asker.says(QUERY_SUBMITTED, {**batch[2].value, "organization_id": "other"})
    assert await asker.stores(batch[2], repeated) == ["conflicting_repeat"]


async def test_batches_of_the_same_users_at_once(context: ProcessContext):
    """Batches over the same users in different orders neither deadlock nor give a place twice."""
    askers = [Asker(context) for _ in range(4)]
    work = []
    for number in range(12):
        order = askers[number % 4 :] + askers[: number % 4]
        sink = QueriesSink(context, PLANS)
        work.append(in_transaction(context, sink, [one.asks(partition=number) for one in order]))
    await asyncio.gather(*work)
    for one in askers:
        assert [row["ordinal"] for row in await one.rows()] == list(range(1, 13))
        assert [told["ordinal"] for told in await one.published(PIPELINE_STAGE)] == list(range(1, 13))


@pytest.mark.requirement("R1.13")
async def test_a_log_that_cannot_be_written_fails_no_run(asker: Asker):
    """R1.13: while the log is locked for long, runs are stored and published without their lines, which are counted."""
    before = RAW_LOG_FAILURES._value.get()
    async with asker.context.pool.acquire() as other, other.transaction():
        await other.execute("LOCK TABLE raw_logs IN ACCESS EXCLUSIVE MODE")
        assert await asker.stores(asker.asks("a"), asker.asks("b")) == []
    assert (len(await asker.rows()), await asker.rows("raw_logs"), len(await asker.published(PIPELINE_STAGE))) == (
        2,
        [],
        2,
    )
    assert RAW_LOG_FAILURES._value.get() - before == 2


# -- cancellations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [status for status in Status if status not in {Status.COMPLETED, Status.FAILED}])
async def test_a_cancelled_run_fails(asker: Asker, status: Status):
    """In any state: taken from its worker, released, published once to the queue and once to operators, without an alert."""
    request = await asker.asked()
    await asker.is_at(request, status, worker=7, lease_until_ms=5, due_ms=6, epoch=3, revision=4, attempt=1)
    assert await asker.stores(asker.cancels(request)) == []
    (row,) = await asker.rows()
    assert (row["status"], row["error"], row["released"]) == ("FAILED", "cancelled by the user", True)
    assert (row["worker"], row["lease_until_ms"], row["due_ms"], row["epoch"], row["revision"]) == (
        None,
        None,
        None,
        4,
        5,
    )
    told = (await asker.published(PIPELINE_STAGE))[-1]
    assert (told["status"], told["operation"], told["waiting"], told["revision"], told["error"]) == (
        "FAILED", "UPDATE", False, 5, "cancelled by the user",
    )  # fmt: skip
    (failed,) = await asker.published(RUN_FAILED, request)
    assert (failed["reason"], failed["is_alert"], failed["user_id"]) == ("cancelled", False, asker.id)
    before = await asker.everything()
    assert await asker.stores(asker.cancels(request), asker.cancels(request)) == []
    assert before == await asker.everything()


async def test_twice_in_a_batch_is_once(asker: Asker):
    """Two cancellations of a run in one batch are one."""
    request = await asker.asked()
    assert await asker.stores(asker.cancels(request), asker.cancels(request)) == []
    assert [told["status"] for told in await asker.published(PIPELINE_STAGE)] == ["NEW", "FAILED"]


@pytest.mark.requirement("R1.4")
@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED])
async def test_what_ended_stays_ended(asker: Asker, status: Status):
    """A cancellation that comes late changes nothing (R1.4)."""
    request = await asker.asked()
    await asker.is_at(request, status)
    before = await asker.everything()
    assert await asker.stores(asker.cancels(request)) == []
    assert before == await asker.everything()


async def test_nobody_cancels_what_another_asked(asker: Asker, context: ProcessContext):
    """A control under another user's id is a dead letter and changes nothing."""
    request = await asker.asked()
    before = await asker.everything()
    other = Asker(context)
    assert await other.stores(other.cancels(request), other.restarts(request, "analyzer")) == ["wrong_user"] * 2
    assert (before, await other.rows()) == (await asker.everything(), [])


async def test_a_control_waits_for_its_submission(asker: Asker, stack: Stack, context: ProcessContext):
    """A cancellation that is read while submissions wait to be stored takes effect once they are; one of no run is dead."""
    asked, nowhere = asker.asks(), new_id()
    controls = [asker.cancels(asked.value["request_id"]), asker.cancels(nowhere)]
    for topic, values in ((RUN_CONTROLLED, controls), (QUERY_SUBMITTED, [asked])):
        send(stack.kafka, topic, [(asker.id.encode(), context.codec.encode(topic, one.value)) for one in values])
    consumer = BatchConsumer(RunControlsSink(context), context)
    stop = asyncio.Event()
    task = asyncio.create_task(consumer.run(stop))
    try:
        await until(lambda: "submissions behind" in (consumer.problem or ""), "it waits and says why")
        async with running(BatchConsumer(QueriesSink(context, PLANS), context)):

            async def is_cancelled() -> bool:
                return [row["status"] for row in await asker.rows()] == ["FAILED"]

            await until(is_cancelled, "the run is cancelled")
    finally:
        stop.set()
        await task
    query = "SELECT headers FROM outbox WHERE topic = $1 AND key = $2"
    letters = await context.pool.fetch(query, RUN_CONTROLLED + ".dlq", asker.id.encode())
    (headers,) = [dict(orjson.loads(row["headers"])) for row in letters]
    assert base64.b64decode(headers["dlq_reason"]) == b"unknown_run"


# -- restarts ------------------------------------------------------------------------------------------------------------


RESULTS = {
    "analysis_result": '{"needs_context": true}', "draft_context": "draft", "final_context_payload": "payload",
    "final_answer": "answer", "sources": "[1]",
}  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "kept"),
    [
        ("analyzer", ()),
        ("assembler", ("analysis_result",)),
        ("responder", ("analysis_result", "draft_context", "final_context_payload", "sources")),
    ],
)
async def test_a_restart_is_a_new_run(asker: Asker, stage: str, kept: tuple[str, ...]):
    """It takes over what the stages before gave, waits for its stage at the end of the order, and leaves the first as it is."""
    request = await asker.asked()
    await asker.asked("another")
    await asker.is_at(request, Status.COMPLETED, **RESULTS)
    first = (await asker.rows())[0]
    again = asker.restarts(request, stage)
    assert await asker.stores(again) == []
    rows = await asker.rows()
    row = rows[2]
    assert (str(row["id"]), row["ordinal"], row["user_query"]) == (
        again.value["new_request_id"],
        3,
        first["user_query"],
    )
    assert (row["status"], str(row["restarted_from"])) == (waiting_status(Stage(stage)), request)
    assert {name for name in RESULTS if row[name] is not None} == set(kept)
    assert all(row[name] == first[name] for name in kept)
    assert row["position"] == row["caused_by"] == str(again.record.position)
    assert (row["released"], row["revision"], row["attempt"], rows[0]) == (False, 1, 0, first)
    told = (await asker.published(PIPELINE_STAGE))[-1]
    assert (told["id"], told["status"], told["operation"], told["waiting"], told["ordinal"]) == (
        again.value["new_request_id"], row["status"], "INSERT", True, 3,
    )  # fmt: skip
    assert [line["content"] for line in await asker.rows("raw_logs")] == ["what is new?", "another", "what is new?"]
    before = await asker.everything()
    assert await asker.stores(again, again) == []
    assert before == await asker.everything()


async def test_there_must_be_something_to_restart_from(asker: Asker):
    """A stage whose input the run never got is refused; the place it would have had is given to the next."""
    request = await asker.asked()
    bad = [asker.restarts(request, "assembler"), asker.restarts(request, "responder")]
    assert await asker.stores(*bad, asker.restarts(request, "analyzer")) == ["nothing_to_restart_from"] * 2
    assert [row["ordinal"] for row in await asker.rows()] == [1, 2]


async def test_a_restart_under_the_id_of_another_run_is_refused(asker: Asker):
    """The id of a restart is known only as that restart."""
    first, second = await asker.asked(), await asker.asked()
    assert await asker.stores(asker.restarts(first, "analyzer", second)) == ["conflicting_repeat"]
    assert len(await asker.rows()) == 2


async def test_controls_of_what_a_control_made(asker: Asker):
    """In one batch: restart, cancel the restarted, restart that, and cancel it twice."""
    request, second, third = await asker.asked(), new_id(), new_id()
    batch = [
        asker.cancels(request), asker.restarts(request, "analyzer", second), asker.cancels(second),
        asker.restarts(second, "analyzer", third), asker.cancels(third), asker.cancels(third),
    ]  # fmt: skip
    assert await asker.stores(*batch) == []
    assert [(str(row["id"]), row["status"]) for row in await asker.rows()] == [
        (request, "FAILED"), (second, "FAILED"), (third, "FAILED"),
    ]  # fmt: skip
    assert [(told["ordinal"], told["status"]) for told in await asker.published(PIPELINE_STAGE)] == [
        (1, "NEW"), (1, "FAILED"), (2, "NEW"), (2, "FAILED"), (3, "NEW"), (3, "FAILED"),
    ]  # fmt: skip
    before = await asker.everything()
    assert await asker.stores(*batch) == []
    assert before == await asker.everything()


# -- prompts -------------------------------------------------------------------------------------------------------------


async def test_the_last_word_on_a_prompt_counts(asker: Asker):
    """A prompt deactivates the one before it, one that comes late or again changes nothing, and it can be taken away."""
    async with asker.context.pool.acquire() as tx:
        outer = tx.transaction()
        await outer.start()
        try:
            await tx.execute("DELETE FROM system_prompts")
            sink = QueriesSink(asker.context, PLANS)

            async def says(*words: tuple[int, str, bool]) -> list[tuple[str, bool]]:
                value = {"role_name": "Mentor", "ts": 1}
                events = [
                    asker.says(PROMPT_CHANGED, {**value, "prompt_template": text, "is_active": active}, at=at)
                    for at, text, active in words
                ]
                assert await sink.apply(tx, events, await sink.prepare(events)) == []
                rows = await tx.fetch("SELECT prompt_template, is_active FROM system_prompts ORDER BY id")
                return [tuple(row) for row in rows]

            assert await says((10, "off", False)) == []
            assert await says((20, "a", True)) == [("a", True)]
            assert await says((15, "late", True), (30, "a", True)) == [("a", True)]
            assert await says((50, "c", True), (40, "b", True)) == [("a", False), ("b", False), ("c", True)]
            taken = [("a", False), ("b", False), ("c", False), ("c", False)]
            assert await says((60, "c", False)) == taken
            assert await says((20, "a", True), (50, "c", True), (70, "off", False)) == taken
            assert await says((80, "c", True)) == [*taken, ("c", True)]
            last = await tx.fetchrow("SELECT * FROM system_prompts ORDER BY id DESC LIMIT 1")
            assert (last["role_name"], last["position"], last["arrived_ms"]) == ("Mentor", f"{PROMPT_CHANGED}/0/80", 80)
        finally:
            await outer.rollback()


async def test_bad_prompts_are_dead(asker: Asker):
    """A prompt of no role and an empty one are refused by name."""
    values = [("Poet", "x"), ("Mentor", " "), ("Mentor", "x" * 20_000)]
    events = [
        asker.says(PROMPT_CHANGED, {"role_name": role, "prompt_template": text, "is_active": True, "ts": 1})
        for role, text in values
    ]
    assert await asker.stores(*events) == ["bad_role", "empty_text", "too_long"]


# -- erasures ------------------------------------------------------------------------------------------------------------


TABLES = {
    "raw_logs": "pipeline_run_id",
    "lsm_storage": "pipeline_run_id",
    "llm_calls": "run_id",
    "run_events": "run_id",
}


async def remembered(asker: Asker, request: str) -> None:
    """The rows of a run by workers and materializers."""
    pool = asker.context.pool
    await pool.execute(
        """INSERT INTO lsm_storage (user_id, time_bucket_start, time_bucket_end, tags, summary, raw_log_ids, pipeline_run_id,
                                    ordinal, created_at)
           VALUES ($1, '2026-01-01', '2026-01-01', '{}', 's', '{}', $2, 1, '2026-01-01')""", asker.id, request,
    )  # fmt: skip
    await pool.execute(
        """INSERT INTO llm_calls (run_id, stage, attempt, user_id, model, prompt_ids, started_at)
           VALUES ($1, 'analyzer', 1, $2, 'm', '{}', '2026-01-01')""", request, asker.id,
    )  # fmt: skip
    await pool.execute(
        """INSERT INTO run_events (run_id, position, status, operation, attempt, at)
           VALUES ($1, 'p', 'NEW', 'INSERT', 0, '2026-01-01')""", request,
    )  # fmt: skip


async def left_of(asker: Asker, requests: Sequence[str]) -> set[str]:
    """Tables that still hold something of these runs."""
    found = set()
    for table, column in {**TABLES, "pipeline_runs": "id"}.items():
        query = f"SELECT 1 FROM {table} WHERE {column} = ANY ($1::uuid[])"
        if await asker.context.pool.fetch(query, list(requests)):
            found.add(table)
    return found


async def test_an_erasure_takes_all_of_a_user(asker: Asker, context: ProcessContext):
    """Runs, lines, memory, calls and timeline of a run are removed, of this user only; a run that blocked the queue is
    published as ended.
    """
    other = Asker(context)
    kept = await other.asked()
    requests = [await asker.asked(f"{n}") for n in range(5)]
    await asker.is_at(requests[0], Status.COMPLETED, archive_status="STORED", released=True)
    await asker.is_at(requests[1], Status.FAILED, released=True)
    await asker.is_at(requests[2], Status.COMPLETED, archive_status="ARCHIVING")
    await asker.is_at(requests[3], Status.RESPONDING, worker=3, revision=6)
    for request, one in [*((request, asker) for request in requests), (kept, other)]:
        await remembered(one, request)
    assert await left_of(asker, requests) == {*TABLES, "pipeline_runs"}
    assert await asker.stores(asker.erased()) == []
    assert (await left_of(asker, requests), await left_of(other, [kept])) == (set(), {*TABLES, "pipeline_runs"})
    users = await context.pool.fetch(
        "SELECT user_id::text FROM query_users WHERE user_id = ANY ($1)", [asker.id, other.id]
    )
    assert [row["user_id"] for row in users] == [other.id]
    told = (await asker.published(PIPELINE_STAGE))[5:]
    assert [(one["id"], one["status"], one["revision"], one["waiting"], one["error"]) for one in told] == [
        (requests[3], "FAILED", 7, False, "the user was erased"), (requests[4], "FAILED", 2, False, "the user was erased"),
    ]  # fmt: skip
    (archived,) = await asker.published(RUN_ARCHIVED)
    assert (archived["request_id"], archived["ordinal"], archived["archive_status"], archived["error"]) == (
        requests[2], 3, "FAILED", "the user was erased",
    )  # fmt: skip


async def test_what_was_said_before_an_erasure_is_void(asker: Asker):
    """Reading the log again restores and refuses nothing; later queries continue in the old order."""
    old = [asker.asks("a"), asker.asks("b")]
    request = old[0].value["request_id"]
    await asker.stores(*old)
    controls = [asker.cancels(request), asker.restarts(request, "analyzer")]
    await asker.stores(*controls)
    erased = asker.erased()
    await asker.stores(erased)
    told = await asker.published(PIPELINE_STAGE)
    assert await asker.stores(*old) == []
    assert await asker.context.pool.fetch("SELECT FROM query_users WHERE user_id = $1", asker.id) == []
    async with running(BatchConsumer(QueriesSink(asker.context, PLANS), asker.context)):
        await until_accounted(asker.context)
        assert await asker.stores(*controls) == []
    assert (await asker.rows(), await asker.published(PIPELINE_STAGE)) == ([], told)
    assert await asker.stores(asker.asks("later")) == []
    assert [(row["user_query"], row["ordinal"]) for row in await asker.rows()] == [("later", 4)]
    await asker.stores(erased)
    assert [row["user_query"] for row in await asker.rows()] == ["later"]
    await asker.stores(asker.asks("last"))
    assert [row["ordinal"] for row in await asker.rows()] == [4, 5]


async def until_accounted(context: ProcessContext) -> None:
    """Submissions of other tests are accounted for."""

    async def caught_up() -> bool:
        try:
            await KnownIds(context.pool, context.admin, SUBMISSIONS).require_all()
        except Exception:  # noqa: BLE001 - not yet
            return False
        return True

    await until(caught_up, "submissions of other tests are accounted for")


async def test_a_query_that_is_being_stored_while_its_user_is_erased_is_gone(asker: Asker):
    """Whichever comes first: nothing slips between the two."""
    batch = [asker.asks(f"{n}") for n in range(20)]
    erased = asker.erased()
    users = UsersSink(asker.context.codec, lambda: NOW_MS, ERASURE, dimensions=384)
    sink = QueriesSink(asker.context, PLANS)
    prepared = await sink.prepare(batch)
    async with asker.context.pool.acquire() as tx, tx.transaction():
        await sink.apply(tx, batch, prepared)
        erasing = asyncio.create_task(in_transaction(asker.context, users, [erased]))
        await until(lambda: waits_for_erasures(asker.context), "the erasure waits")
        assert not erasing.done()
    await erasing
    assert await asker.rows() == []


async def waits_for_erasures(context: ProcessContext) -> bool:
    """Whether a process waits for the lock of erasures."""
    query = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = 7422 AND NOT granted"
    return await context.pool.fetchval(query) is not None


async def test_a_user_may_have_any_id(context: ProcessContext):
    """The id is in its events and rows as it was sent; the order, the queue and the erasure are that user's."""
    one, other = Asker(context), Asker(context)
    one.id = "olga/ÖÄ " + one.id
    first, second = one.asks("first"), one.asks("second")
    assert await one.stores(first, other.asks("own"), second) == []
    told = await one.published(PIPELINE_STAGE)
    assert [(event["user_id"], event["ordinal"], event["requested"]) for event in told] == [
        (one.id, 1, True), (one.id, 2, False),
    ]  # fmt: skip
    assert [row["user_text_id"] for row in await one.rows()] == [one.id, one.id]
    assert await one.stores(one.cancels(second.value["request_id"])) == []
    assert await one.stores(one.erased()) == []
    assert (await one.rows(), len(await other.rows())) == ([], 1)
    assert await one.stores(first, one.asks("later")) == []
    assert [(row["user_query"], row["ordinal"]) for row in await one.rows()] == [("later", 3)]
