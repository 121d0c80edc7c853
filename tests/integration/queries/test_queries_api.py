"""Queries over HTTP on real parts: asking, status, timeline, lists, cancelling, restarting and prompts."""

from __future__ import annotations

import asyncio
import statistics
import time
from datetime import timedelta
from typing import Any

import httpx2
import orjson
import pytest

from highwater.api.queries import routes
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.schemas.positions import parse_position
from highwater.schemas.queries import PIPELINE_STAGE, PROMPT_CHANGED, QUERY_SUBMITTED, RUN_ARCHIVED, RUN_CONTROLLED
from highwater.streams.clock import to_datetime
from highwater.streams.identity.plans import load_plans
from tests.integration.api_server import NOW, Api, Seeds
from tests.integration.connecting import until
from tests.integration.identity.making import organization
from tests.integration.queries.pipeline import (
    change_run,
    complete,
    new_id,
    sources,
    store_call,
    store_run,
    told_sources,
)
from tests.integration.records import ends, record_at

ADA, BOB = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
# Asks as often as may be.
CARL = "33333333-3333-4333-8333-333333333333"
KEYS = (
    f"admin:root-key,editor:pen-key,viewer:eye-key,editor:ada-key:{ADA.upper()}:acme,viewer:bob-key:{BOB},editor:tom-key:tom:acme,"
    f"viewer:look-key:{ADA}:acme,editor:owing-key:{ADA}:owing,"
    f"editor:carl-key:{CARL}:acme"
)


LINES = {"Content-Type": "application/x-ndjson"}


async def ask(api: Api, body: dict[str, Any], token: str | None = None, **headers: str) -> httpx2.Response:
    """POST /api/query."""
    return await api.post("/api/query", body, token, **headers)


async def status(api: Api, request_id: str, token: str | None = None, **headers: str) -> httpx2.Response:
    """The status of a run."""
    return await api.get(f"/api/query/{request_id}/status", token, **headers)


# -- asking ---------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R1.12")
async def test_a_query_is_taken_down_as_an_event(stack, api, codec):
    """202 with the id, and the event is at the returned position, under the user's canonical id."""
    user = new_id()
    answer = await ask(api, {"user_id": user.upper(), "query": "what changed?"})
    assert (answer.status_code, answer.json()["status"]) == (202, "processing")
    record = record_at(stack, answer.json()["positions"][0])
    event = codec.decode(QUERY_SUBMITTED, record.value())
    assert event.pop("ts") == pytest.approx(api.clock(), abs=60_000)
    asked = {"request_id": answer.json()["request_id"], "user_id": user, "query": "what changed?"}
    assert event == {**asked, "organization_id": None}
    assert record.key() == user.encode()


async def test_the_answer_does_not_wait_for_a_sink_that_is_behind(api):
    """With no sink at all asking takes the wait of 25 ms where another write takes one of 100 ms."""
    asked, other = [], []
    async with api.client() as client:
        for number in range(20):
            began = time.perf_counter()
            answer = await client.post("/api/query", json={"user_id": ADA, "query": f"question {number}"})
            asked.append(time.perf_counter() - began)
            began = time.perf_counter()
            changed = await client.put("/api/prompts/Mentor", json={"prompt_template": f"prompt {number}"})
            other.append(time.perf_counter() - began)
            assert (answer.status_code, changed.status_code) == (202, 202)
    # Side by side, since what a loaded machine adds it adds to both.
    assert statistics.median(other) - statistics.median(asked) > 0.04


@pytest.mark.requirement("R1.12")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"user_id": "x" * 513, "query": "q"}, "user_id"),
        ({"user_id": f"{ADA}\n", "query": "q"}, "user_id"),
        ({"user_id": 7, "query": "q"}, "user_id"),
        ({"query": "q"}, "user_id"),
        ({"user_id": ADA}, "query"),
        ({"user_id": ADA, "query": None}, "query"),
        ({"user_id": ADA, "query": ["q"]}, "query"),
        ({"user_id": ADA, "query": ""}, "query"),
        ({"user_id": ADA, "query": " \t\u00a0\n"}, "query"),
        ({"user_id": ADA, "query": "word " * 5_000}, "query"),
        ({"user_id": ADA, "query": "x" * (1 << 20)}, "query"),
        ({"user_id": ADA, "query": "a\x00b"}, "query"),
        ({"user_id": ADA, "query": "q", "model": "large"}, "model"),
    ],
)
async def test_what_cannot_be_asked_is_refused(api, body, field):
    """422 names the field."""
    answer = await ask(api, body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


async def test_users_ask_for_themselves(guarded):
    """A bound key needs not name its user and may name no other; a viewer may not submit, an editor's key without a user may
    for any.
    """
    assert (await ask(guarded, {"query": "q"}, "ada-key")).status_code == 202
    assert (await ask(guarded, {"user_id": ADA, "query": "q"}, "ada-key")).status_code == 202
    assert (await ask(guarded, {"user_id": BOB, "query": "q"}, "ada-key")).status_code == 403
    assert (await ask(guarded, {"user_id": BOB, "query": "q"}, "eye-key")).status_code == 403
    assert (await ask(guarded, {"query": "q"}, "look-key")).status_code == 403  # paid work needs an editor
    assert (await ask(guarded, {"user_id": BOB, "query": "q"}, "pen-key")).status_code == 202
    assert (await ask(guarded, {"query": "q"}, "pen-key")).json()["field"] == "user_id"
    assert (await ask(guarded, {"query": "q"}, "tom-key")).status_code == 202
    assert (await ask(guarded, {"user_id": ADA, "query": "q"})).status_code == 401


async def test_a_query_is_limited_as_jobs_are(guarded, redis_url, seeds):
    """402 with the limit that its organization has reached, 403 for a suspended one, also where many come as events; then 202."""
    event = {"request_id": new_id(), "query": "q", "user_id": ADA, "ts": 1}
    for status, plan, code in (("past_due", "pro", 402), ("suspended", "pro", 403), ("active", "pro", 202)):
        await organization(redis_url, seeds, "owing", plan, status)
        answer = await ask(guarded, {"query": "q"}, "owing-key")
        told = await guarded.post("/api/events/queries.query-submitted", event, "owing-key")
        assert (answer.status_code, told.status_code) == (code, code)
        assert code == 202 or answer.json()["limit"] == told.json()["limit"] == status
    now = (await seeds.run("SELECT clock_timestamp() AS now"))[0]["now"]
    await seeds.insert(
        "usage_records", organization_id="owing", period=f"{now:%Y-%m}", presentations=0, slides=0,
        tokens=load_plans()["pro"].ai_tokens_per_month, cost_cents=0, upto_seq=1, flushed_at=now,
    )  # fmt: skip
    answer = await ask(guarded, {"query": "q"}, "owing-key")
    assert (answer.status_code, answer.json()["limit"]) == (402, "ai_tokens_per_month")
    run = await store_run(seeds, ADA, organization_id="owing", status="FAILED")
    async with guarded.client("root-key") as client:
        again = await client.post(f"/api/query/{run}/restart", json={"stage": "analyzer"})
    assert (again.status_code, again.json()["limit"]) == (402, "ai_tokens_per_month")


async def test_queries_count_for_the_minute_of_the_plan(guarded, redis_url, seeds):
    """The eleventh of the free plan's ten is 429 with the fields that other limited answers have; events count one by one."""
    guarded.clock.offset_ms += 60_000 - guarded.clock() % 60_000 + 1_000
    first = await ask(guarded, {"query": " "}, "carl-key")  # refused, and counted
    assert (first.status_code, first.headers["ratelimit-policy"]) == (422, '"key";q=10;w=60, "user";q=10;w=60')
    events = [{"request_id": new_id(), "query": "q", "user_id": CARL, "ts": 1} for _ in range(9)]
    async with guarded.client("carl-key") as client:
        lines = b"\n".join(map(orjson.dumps, events))
        assert (
            await client.post("/api/events/queries.query-submitted", content=lines, headers=LINES)
        ).status_code == 202
        answer = await client.post("/api/query", json={"query": "q"})
    assert (answer.status_code, answer.json()["violated-policies"]) == (429, ["key", "user"])
    assert 1 <= int(answer.headers["retry-after"]) <= 60


@pytest.mark.requirement("R1.12")
async def test_a_repeat_under_one_key_is_the_same_request(api, seeds):
    """The same id without anything stored; another user's or another key's is another; quotes do not count."""
    ada, bob = new_id(), new_id()
    first = await ask(api, {"user_id": ada, "query": "q"}, Idempotency_Key="k1")
    again = await ask(api, {"user_id": ada.upper(), "query": "q"}, Idempotency_Key='"k1"')
    others = [
        await ask(api, {"user_id": bob, "query": "q"}, Idempotency_Key="k1"),
        await ask(api, {"user_id": ada, "query": "q"}, Idempotency_Key="k2"),
        await ask(api, {"user_id": ada, "query": "q"}),
        await ask(api, {"user_id": ada, "query": "q"}),
    ]
    ids = [answer.json()["request_id"] for answer in (first, *others)]
    assert len(set(ids)) == 5
    assert again.json()["request_id"] == ids[0]

    await store_run(seeds, ada, id=ids[0], user_query="q", position="queries.query-submitted/3/9")
    known = await ask(api, {"user_id": ada, "query": "q"}, Idempotency_Key="k1")
    assert (known.status_code, known.json()["positions"]) == (202, ["queries.query-submitted/3/9"])
    other = await ask(api, {"user_id": ada, "query": "another"}, Idempotency_Key="k1")
    assert (other.status_code, other.json()["request_id"]) == (422, ids[0])
    assert ids[0] in other.json()["detail"]


async def test_of_two_at_once_under_one_key_the_first_in_the_log_counts(stack, api, seeds, monkeypatch):
    """Neither finds the other stored before it is written: the later one hears what conflicts once its sink has read both."""
    monkeypatch.setattr(routes, "SINK_WAIT_MS", 30_000)
    user, topic = new_id(), QUERY_SUBMITTED
    at = murmur2_partition(user.encode(), 8)
    before = ends(stack, topic)[at]
    asking = asyncio.create_task(ask(api, {"user_id": user, "query": "mine"}, Idempotency_Key="k"))
    await until(lambda: ends(stack, topic)[at] > before, "the query is written")
    run_id = routes.request_id_of(user, "k")
    await store_run(seeds, user, id=run_id, user_query="another's", position=f"{topic}/{at}/{before - 1}")
    await seeds.account_for(f"{topic}/{at}/{before}")
    answer = await asking
    assert (answer.status_code, answer.json()["request_id"]) == (422, run_id)


@pytest.mark.parametrize("key", ["", '""', "k" * 256, "k\u00e9".encode(), b"k\tk"])
async def test_a_key_that_is_none_is_refused(api, key):
    """400."""
    async with api.client() as client:
        headers = [(b"Idempotency-Key", key if isinstance(key, bytes) else key.encode())]
        answer = await client.post("/api/query", json={"user_id": ADA, "query": "q"}, headers=headers)
        assert answer.status_code == 400
        twice = [(b"Idempotency-Key", b"a"), (b"Idempotency-Key", b"b")]
        assert (await client.post("/api/query", json={"user_id": ADA, "query": "q"}, headers=twice)).status_code == 400


# -- status ---------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R1.29")
async def test_status_says_what_became_of_a_run(api, seeds):
    """Processing in each state before the end, then the answer; or the error (R1.29)."""
    run = await store_run(seeds, ADA)
    for state in ("NEW", "ANALYZING", "ANALYZED", "ASSEMBLING", "READY", "RESPONDING"):
        await change_run(seeds, run, status=state)
        found = (await status(api, run)).json()
        assert found == {"request_id": run, "status": "processing", "state": state}
    await complete(seeds, run, "42", sources=sources())
    assert (await status(api, run)).json() == {
        "request_id": run,
        "status": "completed",
        "answer": "42",
        "sources": told_sources(),
        "archive_status": "WAITING",
    }
    lost = await store_run(seeds, ADA, status="FAILED", error="Max retries exceeded")
    expected = {"request_id": lost, "status": "failed", "error": "Max retries exceeded"}
    assert (await status(api, lost)).json() == expected


async def test_status_is_conditional(api, seeds):
    """304 until the body changes; the version grows with each change, also of the archiving, and never goes back."""
    run = await store_run(seeds, ADA, revision=1)
    seen: list[tuple[int, str, bytes]] = []
    steps: list[dict[str, Any]] = [
        {},
        {"status": "ANALYZING", "revision": 2},
        {"status": "COMPLETED", "final_answer": "42", "archive_status": "WAITING", "revision": 7},
        {"archive_status": "ARCHIVING"},
        {"archive_status": "WAITING"},
        {"archive_status": "STORED", "caused_by": "queries.query-submitted/0/8"},
    ]
    for step in steps:
        await change_run(seeds, run, **step)
        answer = await status(api, run)
        assert answer.headers["cache-control"] == "private, no-cache"
        seen.append((int(answer.headers["x-resource-version"]), answer.headers["etag"], answer.content))
        unchanged = await status(api, run, If_None_Match=answer.headers["etag"])
        assert (unchanged.status_code, unchanged.content) == (304, b"")
        assert unchanged.headers["x-caused-by"] == answer.headers["x-caused-by"]
    versions = [version for version, _, _ in seen]
    assert versions == sorted(versions)
    assert len({body for *_, body in seen}) == len({etag for _, etag, _ in seen}) == len(set(versions)) == 4
    assert answer.headers["x-caused-by"] == "queries.query-submitted/0/8"


async def test_one_id_asked_for_again_after_an_erasure_has_another_tag(api, seeds):
    """The tag of a run that is gone names no other run's body."""
    run = await store_run(seeds, ADA, position="queries.query-submitted/0/5")
    tag = (await status(api, run)).headers["etag"]
    await seeds.run("DELETE FROM pipeline_runs WHERE id = $1", run)
    await store_run(seeds, ADA, id=run, ordinal=99, position="queries.query-submitted/0/6")
    assert (await status(api, run, If_None_Match=tag)).status_code == 200


@pytest.mark.requirement("R1.29")
async def test_unknown_and_malformed_ids(api):
    """404 and 422, wherever a run is named."""
    for path in ("status", "timeline"):
        assert (await api.get(f"/api/query/{new_id()}/{path}")).status_code == 404
        assert (await api.get(f"/api/query/7/{path}")).status_code == 422
    async with api.client() as client:
        for gone, code in ((new_id(), 404), ("seven", 422)):
            assert (await client.post(f"/api/query/{gone}/cancel")).status_code == code
            assert (await client.delete(f"/api/query/{gone}")).status_code == code
            body = {"stage": "analyzer"}
            assert (await client.post(f"/api/query/{gone}/restart", json=body)).status_code == code


async def test_an_accepted_query_is_processing_before_it_is_stored(api, guarded, seeds):
    """A question and a restart, in every API process, to those who may see it; another question under its key is 422."""
    user = ADA
    asked = await ask(api, {"user_id": user, "query": "why?"}, Idempotency_Key="unread")
    source = await store_run(seeds, user, user_query="again?", organization_id="acme")
    restarted = await api.post(f"/api/query/{source}/restart", {"stage": "analyzer"})
    for accepted, query, former in ((asked, "why?", None), (restarted, "again?", source)):
        run, (position,) = accepted.json()["request_id"], accepted.json()["positions"]
        for process, token in ((api, None), (guarded, "ada-key"), (guarded, "root-key")):
            shown = (await status(process, run, token)).json()
            assert shown == {"request_id": run, "status": "processing", "state": "NEW"}
        found = (await guarded.get(f"/api/query/{run}/timeline", "ada-key")).json()
        assert (found["query"], found["restarted_from"], found["position"]) == (query, former, position)
        assert (await status(guarded, run, "bob-key")).status_code == 404
        assert (await guarded.get(f"/api/query/{run}/timeline", "bob-key")).status_code == 404
    other = await ask(api, {"user_id": user, "query": "how?"}, Idempotency_Key="unread")
    assert (other.status_code, other.json()["request_id"]) == (422, asked.json()["request_id"])


async def test_a_run_is_its_users(guarded, seeds):
    """Others get 404, and 403 for their list; unbound keys and admins read all, and a viewer's cancels none."""
    run = await store_run(seeds, ADA)
    for path in (f"/api/query/{run}/status", f"/api/query/{run}/timeline", f"/api/users/{ADA}/queries"):
        codes = [
            (await guarded.get(path, token)).status_code
            for token in ("ada-key", "eye-key", "root-key", "bob-key", "tom-key", None)
        ]
        others = 403 if path.startswith("/api/users") else 404
        assert codes == [200, 200, 200, others, others, 401]
    for token, code in (("bob-key", 404), ("eye-key", 403)):
        async with guarded.client(token) as client:
            assert (await client.post(f"/api/query/{run}/cancel")).status_code == code
    async with guarded.client("ada-key") as client:
        assert (await client.post(f"/api/query/{run}/cancel")).status_code == 202
        assert (await client.post(f"/api/query/{run}/restart", json={"stage": "analyzer"})).status_code == 403


async def test_a_read_waits_for_the_position_of_the_write(api, seeds):
    """With its position the status is 503 until the sink has been there, then 404 or the run; never a stale 404."""
    asked = (await ask(api, {"user_id": new_id(), "query": "q"})).json()
    position = asked["positions"][0]
    early = await status(api, asked["request_id"], X_Min_Position=position, X_Max_Wait_Ms="50")
    assert (early.status_code, early.headers["retry-after"]) == (503, "1")
    topic, partition, offset = parse_position(position)
    stored = (
        'INSERT INTO positions ("group", topic, partition, topic_id, next) VALUES ($1, $2, $3, $4, $5)'
        ' ON CONFLICT ("group", topic, partition) DO UPDATE SET next = excluded.next'  # a wait of another test's query
    )
    await seeds.run(stored, "queries", topic, partition, "x", offset + 1)
    assert (await status(api, asked["request_id"], X_Min_Position=position)).status_code == 404
    await store_run(seeds, ADA, id=asked["request_id"])
    assert (await status(api, asked["request_id"], X_Min_Position=position)).status_code == 200
    wrong = await status(api, asked["request_id"], X_Min_Position="queries.pipeline-stage/0/0")
    assert wrong.status_code == 400
    beyond = await status(api, asked["request_id"], X_Min_Position="queries.run-controlled/0/999999999")
    assert beyond.status_code == 400


# -- timeline -------------------------------------------------------------------------------------------------------------


async def test_the_timeline_tells_a_run_from_end_to_end(api, seeds):
    """Stages with durations and calls, events with positions in their order, totals; exactly the stored values."""
    run = await store_run(seeds, ADA, user_query="why?", restarted_from=BOB)
    await complete(seeds, run, sources=sources(), completed_at=NOW + timedelta(seconds=9), archive_status="STORED")
    way = ["NEW", "ANALYZING", "ANALYZED", "ASSEMBLING", "READY", "RESPONDING", "COMPLETED"]
    for place, state in enumerate(way):
        await _store_event(seeds, run, state, place, revision=place + 1, operation="UPDATE" if place else "INSERT")
    await _store_event(seeds, run, "COMPLETED", 9, topic=RUN_ARCHIVED, archive_status="STORED")
    # An event that the relay published twice is sent once.
    await _store_event(seeds, run, "ANALYZED", 2, offset=55, revision=3)
    await store_call(seeds, run, ADA, "analyzer", outcome="timeout", error="no answer in 30 s", cost_usd=None)
    await store_call(seeds, run, ADA, "analyzer", attempt=2, sends=2, started_at=NOW + timedelta(seconds=1.5))
    await store_call(seeds, run, ADA, "responder", model="large", cost_usd=0.5)

    answer = await api.get(f"/api/query/{run}/timeline")
    found = answer.json()
    assert {name: found[name] for name in ("request_id", "user_id", "status", "query", "restarted_from")} == {
        "request_id": run, "user_id": ADA, "status": "COMPLETED", "query": "why?", "restarted_from": BOB,
    }  # fmt: skip
    assert (found["created_at"], found["completed_at"], found["duration_ms"]) == (
        "2026-11-20T12:00:00Z", "2026-11-20T12:00:09Z", 9_000,
    )  # fmt: skip
    assert [(stage["stage"], stage["duration_ms"], len(stage["attempts"])) for stage in found["stages"]] == [
        ("analyzer", 1_000, 2), ("assembler", 1_000, 0), ("responder", 1_000, 1), ("archivist", 3_000, 0),
    ]  # fmt: skip
    first, second = found["stages"][0]["attempts"]
    assert (first["outcome"], first["error"], first["duration_ms"]) == ("timeout", "no answer in 30 s", 1_000)
    assert (second["key"], second["sends"], second["model"]) == (f"{run}/analyzer/2", 2, "small")
    assert [event["status"] for event in found["events"]] == [*way, "COMPLETED"]
    assert found["events"][2]["position"] == "queries.pipeline-stage/0/2"
    assert (found["events"][-1]["archive_status"], found["events"][-1]["operation"]) == ("STORED", "ARCHIVE")
    assert found["sources"] == told_sources()
    expected = {"calls": 3, "sends": 4, "prompt_tokens": 300, "completion_tokens": 30, "cost_usd": 0.75}
    assert found["totals"] == expected
    assert answer.headers["x-caused-by"] == "queries.run-archived/0/9"


async def _store_event(seeds: Seeds, run: str, state: str, second: int, **columns: Any) -> None:
    topic, offset = columns.pop("topic", PIPELINE_STAGE), columns.pop("offset", second)
    row = {
        "run_id": run, "position": f"{topic}/0/{offset}", "status": state, "archive_status": None,
        "operation": "ARCHIVE" if topic.endswith("archived") else "UPDATE", "attempt": 0, "revision": None, "error": None,
        "at": NOW + timedelta(seconds=second), **columns,
    }  # fmt: skip
    await seeds.insert("run_events", **row)


async def test_the_timeline_of_a_run_under_way_and_of_one_that_failed(api, seeds):
    """Future stages are null or absent; a stage that failed ends with the run."""
    run = await store_run(seeds, ADA, status="ANALYZING", revision=2)
    await store_call(seeds, run, ADA, "analyzer", ended_at=None, outcome=None, prompt_tokens=None, cost_usd=None)
    found = (await api.get(f"/api/query/{run}/timeline")).json()
    assert (found["completed_at"], found["duration_ms"], found["events"], found["sources"]) == (None, None, [], [])
    assert [stage["stage"] for stage in found["stages"]] == ["analyzer"]
    assert (found["stages"][0]["ended_at"], found["totals"]["cost_usd"]) == (None, None)

    for place, state in enumerate(("NEW", "ANALYZING", "FAILED")):
        error = "Max retries exceeded" if state == "FAILED" else None
        await _store_event(seeds, run, state, place, revision=place + 1, error=error)
    later = NOW + timedelta(seconds=2)
    await change_run(seeds, run, status="FAILED", revision=3, error="Max retries exceeded", updated_at=later)
    failed = (await api.get(f"/api/query/{run}/timeline")).json()
    assert (failed["duration_ms"], failed["error"]) == (2_000, "Max retries exceeded")
    assert (failed["stages"][0]["duration_ms"], failed["events"][-1]["error"]) == (1_000, "Max retries exceeded")


async def test_the_timeline_is_conditional(api, seeds):
    """Every step raises the version and changes the tag; between two steps it is 304."""
    run = await store_run(seeds, ADA)
    steps = [
        lambda: _store_event(seeds, run, "NEW", 0, revision=1),
        lambda: store_call(seeds, run, ADA, "analyzer", ended_at=None, outcome=None),
        lambda: seeds.run("UPDATE llm_calls SET sends = 2 WHERE run_id = $1", run),
        lambda: seeds.run("UPDATE llm_calls SET outcome = 'answered', ended_at = $2 WHERE run_id = $1", run, NOW),
        lambda: change_run(seeds, run, status="ANALYZED", revision=3),
        lambda: _store_event(seeds, run, "ANALYZED", 2, revision=3),
        lambda: change_run(seeds, run, sources=sources()),
    ]
    path = f"/api/query/{run}/timeline"
    last = await api.get(path)
    for step in steps:
        await step()
        answer = await api.get(path)
        assert int(answer.headers["x-resource-version"]) > int(last.headers["x-resource-version"])
        assert answer.headers["etag"] != last.headers["etag"]
        assert (await api.get(path, If_None_Match=answer.headers["etag"])).status_code == 304
        last = answer
    accepted = await api.get(path, X_Min_Position="queries.pipeline-stage/0/999999")
    assert (accepted.status_code, "past the end" in accepted.json()["detail"]) == (400, True)


# -- lists, cancelling, restarting, prompts -------------------------------------------------------------------------------


async def test_a_users_queries_are_paged_the_newest_first(api, seeds):
    """Each once, in the user's order, with any new ones between the pages; no other user's."""
    user = new_id()
    runs = [await store_run(seeds, user, user_query=f"q{number}") for number in range(5)]
    await complete(seeds, runs[0])
    await store_run(seeds, new_id())
    first = (await api.get(f"/api/users/{user.upper()}/queries?limit=2")).json()
    await store_run(seeds, user, user_query="late")
    second = (await api.get(f"/api/users/{user}/queries?limit=2&cursor={first['next_cursor']}")).json()
    third = (await api.get(f"/api/users/{user}/queries?limit=2&cursor={second['next_cursor']}")).json()
    listed = [line for page in (first, second, third) for line in page["queries"]]
    assert [line["request_id"] for line in listed] == runs[::-1]
    assert (third["next_cursor"], listed[-1]["status"], listed[0]["state"]) == (None, "completed", "NEW")
    assert (await api.get(f"/api/users/{new_id()}/queries")).json()["queries"] == []
    assert (await api.get("/api/users/tom/queries")).json()["queries"] == []
    assert (await api.get(f"/api/users/{user}/queries?cursor=WyJ4Il0")).status_code == 400


async def test_cancelling_is_an_event(stack, api, seeds, codec):
    """By POST and by DELETE; under the user's key."""
    run = await store_run(seeds, ADA)
    async with api.client() as client:
        for answer in (await client.post(f"/api/query/{run}/cancel"), await client.delete(f"/api/query/{run.upper()}")):
            assert (answer.status_code, answer.json()["request_id"]) == (202, run)
            record = record_at(stack, answer.json()["positions"][0])
            event = codec.decode(RUN_CONTROLLED, record.value())
            assert (event["action"], event["request_id"], record.key()) == ("cancel", run, ADA.encode())


async def test_restarting_makes_a_new_run_where_the_inputs_are(stack, api, seeds, codec):
    """202 with the new id; 409 for a stage that the run never reached; 422 for an invalid one."""
    run = await store_run(seeds, ADA, status="FAILED", error="x", analysis_result="{}")
    async with api.client() as client:
        answer = await client.post(f"/api/query/{run}/restart", json={"stage": "assembler"})
        found = answer.json()
        assert (answer.status_code, found["restarted_from"]) == (202, run)
        event = codec.decode(RUN_CONTROLLED, record_at(stack, found["positions"][0]).value())
        assert (event["action"], event["stage"], event["request_id"]) == ("restart", "assembler", run)
        assert event["new_request_id"] == found["request_id"] != run
        early = await client.post(f"/api/query/{run}/restart", json={"stage": "responder"})
        assert early.status_code == 409
        assert (await client.post(f"/api/query/{run}/restart", json={"stage": "archivist"})).status_code == 422


async def test_failed_queries_are_restarted_together(redis_url, stack, guarded, seeds, codec):
    """Each once, from the stage that failed, with its expected cost; cancelled, restarted and refused ones are left out."""
    user, org, suspended = new_id(), f"org-{new_id()[:8]}", f"org-{new_id()[:8]}"
    await organization(redis_url, seeds, org, "enterprise", "active")
    await organization(redis_url, seeds, suspended, "enterprise", "suspended")
    failed = {"status": "FAILED", "organization_id": org}
    error = "no model: timeout"
    first = await store_run(seeds, user, **failed, error=error, updated_at=NOW - timedelta(minutes=1))
    second = await store_run(seeds, user, **failed, error=error, analysis_result="{}")
    other = await store_run(seeds, user, **failed, error="no context", analysis_result="{}", final_context_payload="x")
    await store_run(seeds, user, **failed, error=error, is_cancelled=True)
    again = await store_run(seeds, user, **failed, error=error)
    await store_run(seeds, user, restarted_from=again)
    await store_run(seeds, user, status="FAILED", organization_id=suspended, error=error)
    lately = to_datetime(guarded.clock() - 1_000)
    for stage in ("analyzer", "assembler", "responder"):
        await store_call(seeds, first, user, stage, started_at=lately, ended_at=lately)
    path, mine = "/api/queries/restart", {"user_id": user.upper()}
    async with guarded.client("root-key") as client:
        plan = (await client.get(path, params=mine)).json()
        assert [one["request_id"] for one in plan["queries"]] == [*sorted((second, other)), first]
        assert plan["reasons"] == [{"reason": "no model", "queries": 2}, {"reason": "no context", "queries": 1}]
        assert (plan["users"], plan["found"], plan["stages_left"]) == ([{"user_id": user, "count": 3}], 3, 3 + 2 + 1)
        assert plan["expected_tokens"] > 0
        assert [(one["organization_id"], one["queries"]) for one in plan["refusals"]] == [(suspended, 1)]
        for asked, ids in (
            ({"reason": "NO MODEL"}, {first, second}),
            ({"stage": "responder"}, {other}),
            ({"to": NOW.isoformat()}, {first}),
            ({"organization_id": suspended}, set()),
        ):
            found = (await client.get(path, params={**mine, **asked})).json()
            assert {one["request_id"] for one in found["queries"]} == ids, asked
        answer = await client.post(path, json={"reason": "no model", "request_ids": [second, other]})
        (done,) = answer.json()["queries"]
        assert (answer.status_code, done["request_id"], done["stage"]) == (202, second, "assembler")
        event = codec.decode(RUN_CONTROLLED, record_at(stack, answer.json()["positions"][0]).value())
        assert (event["action"], event["request_id"], event["stage"]) == ("restart", second, "assembler")
        repeated = (await client.post(path, json={"request_ids": [second]})).json()["queries"]
        assert [event["new_request_id"]] == [one["new_request_id"] for one in repeated] == [done["new_request_id"]]
        assert (await client.get(path, params={"from": "soon"})).status_code == 422
        for wrong in ({"user_id": "a\x9b"}, {"organization_id": "a\x9b"}):
            assert (await client.get(path, params=wrong)).status_code == 422, wrong
    for token in ("pen-key", "eye-key", "ada-key"):
        async with guarded.client(token) as client:
            assert (await client.post(path, json={})).status_code == 403, token


async def test_prompts_are_read_and_changed(stack, api, seeds, codec):
    """The active one of each role, those before it in pages, and a change as an event."""
    await seeds.run("DELETE FROM system_prompts")
    for number in range(3):
        await seeds.run(
            "INSERT INTO system_prompts (role_name, prompt_template, is_active, position, changed_at, arrived_ms) "
            "VALUES ('Mentor', $1, $2, $3, $4, 1)",
            f"p{number}",
            number == 2,
            f"queries.prompt-changed/0/{number}",
            NOW,
        )
    found = (await api.get("/api/prompts")).json()["prompts"]
    assert [(one["role_name"], one["prompt_template"], one["is_active"]) for one in found] == [
        ("Analyzer", None, False), ("Assembler", None, False), ("Mentor", "p2", True), ("Archivist", None, False),
    ]  # fmt: skip
    mentor = (await api.get("/api/prompts/Mentor")).json()
    assert (mentor["position"], mentor["changed_at"]) == ("queries.prompt-changed/0/2", "2026-11-20T12:00:00Z")
    assert "history" not in mentor
    page = (await api.get("/api/prompts/Mentor?history=true&limit=2")).json()
    rest = (await api.get(f"/api/prompts/Mentor?history=true&limit=2&cursor={page['next_cursor']}")).json()
    templates = [one["prompt_template"] for one in page["history"] + rest["history"]]
    assert (templates, rest["next_cursor"]) == (["p2", "p1", "p0"], None)
    assert (await api.get("/api/prompts/Critic")).status_code == 404

    async with api.client() as client:
        answer = await client.put("/api/prompts/Archivist", json={"prompt_template": "Summarise."})
        assert answer.status_code == 202
        record = record_at(stack, answer.json()["positions"][0])
        event = codec.decode(PROMPT_CHANGED, record.value())
        del event["ts"]
        assert event == {"role_name": "Archivist", "prompt_template": "Summarise.", "is_active": True}
        assert (await client.put("/api/prompts/Critic", json={"prompt_template": "x"})).status_code == 404


async def test_what_is_an_admins_is_so_by_every_door(guarded):
    """Prompts and the control of runs need the role also as plain events."""
    async with guarded.client("pen-key") as client:
        body = {"role_name": "Mentor", "prompt_template": "x", "is_active": True, "ts": "2026-01-01T00:00:00Z"}
        assert (await client.post("/api/events/queries.prompt-changed", json=body)).status_code == 403
        assert (await client.post("/api/events/queries.run-controlled", json={})).status_code == 403
        assert (await client.put("/api/prompts/Mentor", json={"prompt_template": "x"})).status_code == 403
        assert (await client.get("/api/prompts")).status_code == 200
    assert (await guarded.get("/api/prompts", "look-key")).status_code == 403
