"""Jobs over HTTP on real parts: submitting, limits, status, lists, revoking, decks, and who may."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

import asyncpg
import httpx2
import orjson
import pytest
from redis.asyncio import Redis

from highwater.api.jobs.routes import job_id_of
from highwater.connectors.identity.statements import QUERIES as METER
from highwater.connectors.jobs.read_model import failed_jobs
from highwater.connectors.kafka import unread
from highwater.schemas.jobs import CONTROL, JOB_SUBMITTED
from highwater.streams.checks import TS_MS_MAX, TS_MS_MIN
from highwater.streams.identity.plans import load_plans
from tests.integration.api_server import NOW, Api, Seeds
from tests.integration.identity.making import organization
from tests.integration.jobs.watching import ADA, BOB, ORG, change_job, new_id, store_job
from tests.integration.queries.pipeline import store_call
from tests.integration.records import record_at

KEYS = f"admin:root-key,viewer:eye-key,editor:ada-key:{ADA}:{ORG},viewer:look-key:{ADA}:{ORG},editor:bob-key:{BOB}"
KEYS += ",editor:rob-key:rob"  # a separate user: the calls of a user are limited
DECK = {"kind": "generation", "organization_id": ORG, "user_id": ADA, "args": {"query": "why?", "slides": 3}}


# -- submitting -----------------------------------------------------------------------------------------------------------


async def test_a_job_is_taken_down_as_an_event(stack, api, codec):
    """202 with the id, and the event is at the returned position, keyed by the job."""
    answer = await submit(api, {**DECK, "expires_at": "2030-01-01T00:00:00Z"})
    assert answer.status_code == 202
    record = record_at(stack, answer.json()["positions"][0])
    event = codec.decode(JOB_SUBMITTED, record.value())
    assert event.pop("ts") == pytest.approx(api.clock(), abs=60_000)
    assert orjson.loads(event.pop("args")) == DECK["args"]
    job_id = answer.json()["job_id"]
    expected = {"job_id": job_id, "kind": "generation", "organization_id": ORG, "user_id": ADA}
    assert event == {**expected, "expires_at": 1_893_456_000_000}
    assert record.key() == job_id.encode()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kind": "dance"}, "kind"),
        ({"args": {}}, "args.query"),
        ({"args": {"query": "q", "slides": 0}}, "args.slides"),
        ({"args": {"query": "q", "size": 1}}, "args"),
        ({"args": "{}"}, "args"),
        ({"args": {"query": "q", "slides": 2**70}}, "args"),
        ({"args": None}, "args"),
        ({"organization_id": " "}, "organization_id"),
        ({"organization_id": None}, "organization_id"),
        ({"user_id": None}, "user_id"),
        ({"user_id": "a\x00"}, "user_id"),
        ({"expires_at": "soon"}, "expires_at"),
        ({"expires_at": True}, "expires_at"),
        ({"color": "red"}, "color"),
    ],
)
async def test_what_is_no_job_is_refused(api, change, field):
    """422 that names the field."""
    answer = await submit(api, {**DECK, **change})
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"].startswith(field)


async def test_half_a_character_is_refused(api):
    """A lone surrogate in the args has no UTF-8."""
    body = orjson.dumps(DECK).replace(b"why?", b"\\ud800")
    async with api.client() as client:
        answer = await client.post("/api/jobs", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["field"]) == (422, "args")


async def test_a_repeat_under_one_key_is_the_same_job(api, seeds):
    """With nothing stored the id is the same; once it is stored no second event is written, and another job is refused."""
    first = await submit(api, DECK, Idempotency_Key='"k1"')
    again = await submit(api, DECK, Idempotency_Key="k1")
    assert first.json()["job_id"] == again.json()["job_id"]
    other = await submit(api, {**DECK, "user_id": BOB}, Idempotency_Key="k1")
    assert other.json()["job_id"] != first.json()["job_id"]
    args = '{"slides": 3, "query": "why?", "source_document_ids": []}'
    await store_job(seeds, job_id=first.json()["job_id"], args=args, position="jobs.job-submitted/1/5")
    third = await submit(api, DECK, Idempotency_Key="k1")
    assert third.json() == {"job_id": first.json()["job_id"], "positions": ["jobs.job-submitted/1/5"]}
    changed = await submit(api, {**DECK, "args": {"query": "how?"}}, Idempotency_Key="k1")
    assert (changed.status_code, changed.json()["field"]) == (422, "Idempotency-Key")
    assert (await submit(api, DECK, Idempotency_Key="")).status_code == 400


async def test_an_accepted_job_is_known_before_it_is_stored(api, guarded, seeds):
    """In every API process, to those who may see it; other args under its key are 422; refused by its sink, it is 404."""
    first = (await submit(api, DECK, Idempotency_Key="k2")).json()
    path, (position,) = f"/api/jobs/{first['job_id']}", first["positions"]
    for process, token in ((api, None), (guarded, "root-key"), (guarded, "ada-key")):
        shown = await process.get(path, token)
        assert (shown.status_code, shown.json()["status"], shown.json()["position"]) == (200, "pending", position)
    assert (await guarded.get(path, "rob-key")).status_code == 404
    changed = await submit(api, {**DECK, "args": {"query": "how?"}}, Idempotency_Key="k2")
    assert (changed.status_code, changed.json()["job_id"]) == (422, first["job_id"])
    assert (await submit(api, DECK, Idempotency_Key="k2")).json() == first
    await seeds.account_for(position)
    assert (await api.get(path)).status_code == 404


async def test_an_id_is_not_called_unknown_before_the_log_was_read(api, monkeypatch):
    """Beyond the limits of a lookup the answer is 503, and says when to try again."""
    monkeypatch.setattr(unread, "IDS_MAX", 0)
    await submit(api, DECK)
    answer = await api.get(f"/api/jobs/{new_id()}")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "could not be read within" in answer.json()["detail"]


# -- what an organization may ---------------------------------------------------------------------------------------------


async def test_a_suspended_organization_may_nothing(redis_url, api, seeds):
    """403 that names the limit, for every kind."""
    await organization(redis_url, seeds, "late", "pro", "suspended")
    export = {"kind": "export", "args": {"presentation_id": new_id(), "format": "pdf"}}
    for body in ({**DECK, "organization_id": "late"}, {**DECK, **export, "organization_id": "late"}):
        answer = await submit(api, body)
        assert (answer.status_code, answer.json()["limit"]) == (403, "suspended")


async def test_one_that_is_past_due_makes_no_new_decks(redis_url, api, seeds):
    """402 for a deck; it continues with its existing ones."""
    await organization(redis_url, seeds, "owing", "pro", "past_due")
    answer = await submit(api, {**DECK, "organization_id": "owing"})
    assert (answer.status_code, answer.json()["limit"]) == (402, "past_due")
    export = {"kind": "export", "args": {"presentation_id": new_id(), "format": "pdf"}}
    assert (await submit(api, {**DECK, **export, "organization_id": "owing"})).status_code == 202


async def test_a_month_that_is_used_up(redis_url, api, seeds):
    """402 that names the limit; another plan has room again."""
    await organization(redis_url, seeds, "busy", "free", "active")
    room = load_plans()["free"].max_presentations_per_month
    assert room is not None
    now = (await seeds.run("SELECT clock_timestamp() AS now"))[0]["now"]
    for _ in range(room):
        await seeds.run(METER["count_usage"], "busy", f"{now:%Y-%m}", new_id(), 1, 3, 100, 1, now)
    answer = await submit(api, {**DECK, "organization_id": "busy"})
    assert (answer.status_code, answer.json()["limit"]) == (402, "max_presentations_per_month")
    assert "busy" in answer.json()["detail"]
    await organization(redis_url, seeds, "busy", "enterprise", "active")
    assert (await submit(api, {**DECK, "organization_id": "busy"})).status_code == 202


async def test_used_up_says_the_same_as_usage(redis_url, api, seeds):
    """Tokens of a deck that failed are shown, and are what the limit is judged by; a restart is refused as a new deck is."""
    await organization(redis_url, seeds, "tokens", "free", "active")
    now = (await seeds.run("SELECT clock_timestamp() AS now"))[0]["now"]
    limit = load_plans()["free"].ai_tokens_per_month
    job = await store_job(seeds, organization_id="tokens", status="failed", tokens=limit, completed_at=now)
    await seeds.run(METER["count_usage"], "tokens", f"{now:%Y-%m}", job, 0, 0, limit, 1, now)
    shown = (await api.get("/api/organizations/tokens/usage")).json()
    assert (shown["tokens"], shown["presentations"]) == (limit, 0)
    for answer in (
        await submit(api, {**DECK, "organization_id": "tokens"}),
        await api.post(f"/api/jobs/{job}/restart", None),
    ):
        assert (answer.status_code, answer.json()["limit"]) == (402, "ai_tokens_per_month")


# -- how a job stands -----------------------------------------------------------------------------------------------------


async def test_a_job_as_it_is_served(api, seeds):
    """Its status, progress, result with its place, error and cost; conditional."""
    job = await store_job(seeds, created_at=NOW, updated_at=NOW, seq=4, progress_pct=46, steps_done=7, steps_total=15)
    answer = await api.get(f"/api/jobs/{job.upper()}")
    assert answer.json() == {
        "job_id": job,
        "kind": "generation",
        "organization_id": ORG,
        "user_id": ADA,
        "status": "running",
        "waiting_for": None,
        "progress_pct": 46,
        "steps_done": 7,
        "steps_total": 15,
        "result": None,
        "result_url": None,
        "error": None,
        "tokens": 0,
        "cost_usd": 0.0,
        "cost_cents": None,
        "created_at": "2026-11-20T12:00:00Z",
        "updated_at": "2026-11-20T12:00:00Z",
        "completed_at": None,
        "expires_at": None,
        "last_event_id": "4-0",
        "position": "jobs.job-submitted/0/7",
    }
    assert (answer.headers["x-resource-version"], answer.headers["x-caused-by"]) == ("6", "jobs.job-submitted/0/7")
    same = await api.get(f"/api/jobs/{job}", If_None_Match=answer.headers["etag"])
    assert (same.status_code, same.content) == (304, b"")
    made = {"presentation_id": job, "title": "Why", "slides": 7, "is_cached": False}
    done = {"status": "completed", "seq": 5, "tokens": 1200, "cost_usd": Decimal("0.29"), "cost_cents": 29}
    await change_job(seeds, job, **done, result=orjson.dumps(made).decode(), completed_at=NOW, progress_pct=100)
    after = await api.get(f"/api/jobs/{job}", If_None_Match=answer.headers["etag"])
    assert (after.status_code, after.headers["x-resource-version"]) == (200, "7")
    told = after.json()
    assert (told["result_url"], told["cost_usd"], told["cost_cents"]) == (f"/api/presentations/{job}", 0.29, 29)


async def test_how_a_job_went(api, seeds):
    """Its arguments and its steps with their calls; conditional, and another version after another call."""
    job = await store_job(seeds, created_at=NOW, updated_at=NOW)
    await store_call(seeds, job, new_id(), "outline")
    answer = await api.get(f"/api/jobs/{job}/timeline")
    told = answer.json()
    assert (told["args"]["query"], told["position"], told["duration_ms"]) == ("why?", "jobs.job-submitted/0/7", None)
    (step,) = told["steps"]
    assert (step["step"], step["duration_ms"], step["attempts"][0]["key"]) == ("outline", 1_000, f"{job}/outline/1")
    assert (step["attempts"][0]["prompt_tokens"], step["attempts"][0]["cost_usd"]) == (100, 0.25)
    assert (await api.get(f"/api/jobs/{job}/timeline", If_None_Match=answer.headers["etag"])).status_code == 304
    await store_call(seeds, job, new_id(), "slide-1", ended_at=None, outcome=None)
    after = await api.get(f"/api/jobs/{job}/timeline", If_None_Match=answer.headers["etag"])
    assert [one["ended_at"] is None for one in after.json()["steps"]] == [False, True]
    assert int(after.headers["x-resource-version"]) > int(answer.headers["x-resource-version"])


async def test_where_a_result_is_found(api, seeds):
    """A file by its bytes; an ingestion has no page."""
    of_file = orjson.dumps(
        {
            "sha256": "abc",
            "media_type": "application/pdf",
            "size_bytes": 9,
            "presentation_id": new_id(),
            "format": "pdf",
        }
    ).decode()
    of_chunks = orjson.dumps({"ns": "n", "slot": "s", "ingest_id": new_id(), "documents": 1, "chunks": 3}).decode()
    export = await store_job(seeds, kind="export", status="completed", result=of_file)
    ingestion = await store_job(seeds, kind="ingestion", status="completed", result=of_chunks)
    assert (await api.get(f"/api/jobs/{export}")).json()["result_url"] == "/api/blobs/abc"
    assert (await api.get(f"/api/jobs/{ingestion}")).json()["result_url"] is None


async def test_a_read_waits_for_its_position(api, seeds):
    """503 until the sink has been there, and then never 404; what does not feed it is refused."""
    answer = await submit(api, DECK)
    job, position = answer.json()["job_id"], answer.json()["positions"][0]
    path = f"/api/jobs/{job}"
    assert (await api.get(path, X_Min_Position=position, X_Max_Wait_Ms="50")).status_code == 503
    reading = asyncio.create_task(api.get(path, X_Min_Position=position))
    await store_job(seeds, job_id=job)
    await seeds.account_for(position)
    assert (await reading).status_code == 200
    assert (await api.get(path, X_Min_Position="queries.query-submitted/0/0")).status_code == 400
    assert (await api.get("/api/jobs/nonsense")).status_code == 422


# -- revoking -------------------------------------------------------------------------------------------------------------


async def test_a_job_is_revoked_by_an_event(stack, api, seeds, codec):
    """202 with its position, which feeds the job's page; an unknown one is 404."""
    job = await store_job(seeds)
    async with api.client() as client:
        answer = await client.delete(f"/api/jobs/{job}")
        assert (await client.delete(f"/api/jobs/{new_id()}")).status_code == 404
    assert (answer.status_code, answer.json()["job_id"]) == (202, job)
    position = answer.json()["positions"][0]
    record = record_at(stack, position)
    event = codec.decode(CONTROL, record.value())
    assert event.pop("ts") == pytest.approx(api.clock(), abs=60_000)
    assert event == {"job_id": job, "action": "revoke", "reason": "revoked", "outline": None}
    assert record.key() == job.encode()
    assert (await api.get(f"/api/jobs/{job}", X_Min_Position=position, X_Max_Wait_Ms="10")).status_code == 503
    await seeds.account_for(position)
    assert (await api.get(f"/api/jobs/{job}", X_Min_Position=position)).status_code == 200


# -- restarting ----------------------------------------------------------------------------------------------------------


async def test_a_failed_job_is_restarted_by_an_event(stack, api, seeds, codec):
    """202 with its position, which feeds the job's page."""
    job = await store_job(seeds, status="failed", error="no model")
    answer = await api.post(f"/api/jobs/{job}/restart", None)
    assert (answer.status_code, answer.json()["job_id"]) == (202, job)
    record = record_at(stack, answer.json()["positions"][0])
    event = codec.decode(CONTROL, record.value())
    assert (event["job_id"], event["action"], record.key()) == (job, "restart", job.encode())


async def test_only_failed_jobs_are_restarted(api, seeds):
    """409 with the state of the job; 404 for an unknown one."""
    for status in ("pending", "running", "completed", "revoked", "expired"):
        answer = await api.post(f"/api/jobs/{await store_job(seeds, status=status)}/restart", None)
        assert (answer.status_code, answer.json()["job_status"]) == (409, status)
        assert status in answer.json()["detail"]
    assert (await api.post(f"/api/jobs/{new_id()}/restart", None)).status_code == 404


async def test_an_outline_is_approved_by_an_event(stack, api, guarded, seeds, codec):
    """A waiting one is shown with its deadline; 202 with the edited outline, 422 for an invalid one, 409 if nothing waits."""
    outline = {"title": "KRaft", "slides": [{"title": "One", "points": ["a"]}]}
    held = {"checkpoint": orjson.dumps({"outline": outline}).decode(), "approval_until_ms": 1_893_456_000_000}
    job = await store_job(seeds, **held)
    waits = {"event": "approval", "until": "2030-01-01T00:00:00Z"}
    assert (await api.get(f"/api/jobs/{job}")).json()["waiting_for"] == {**waits, "outline": outline}
    listed = (await api.get(f"/api/organizations/{ORG}/jobs")).json()["jobs"]
    assert next(one["waiting_for"] for one in listed if one["job_id"] == job) == waits
    edited = {"outline": {"title": "Mine", "slides": [{"title": "Other", "points": []}]}}
    answer = await api.post(f"/api/jobs/{job}/approve", edited)
    assert (answer.status_code, answer.json()["job_id"]) == (202, job)
    event = codec.decode(CONTROL, record_at(stack, answer.json()["positions"][0]).value())
    assert (event["job_id"], event["action"], orjson.loads(event["outline"])) == (job, "approve", edited["outline"])
    plain = await api.post(f"/api/jobs/{job}/approve", None)
    assert codec.decode(CONTROL, record_at(stack, plain.json()["positions"][0]).value())["outline"] is None
    for wrong in ({"title": "A"}, {"title": "A", "slides": [{"points": []}]}, []):
        refused = await api.post(f"/api/jobs/{job}/approve", {"outline": wrong})
        assert (refused.status_code, refused.json()["field"]) == (422, "outline"), refused.text
    for columns in ({}, {**held, "status": "completed"}, {"status": "failed"}):
        refused = await api.post(f"/api/jobs/{await store_job(seeds, **columns)}/approve", None)
        assert (refused.status_code, refused.json()["job_status"]) == (409, columns.get("status", "running"))
        assert "is not waiting for approval" in refused.json()["detail"]
    assert (await api.post(f"/api/jobs/{new_id()}/approve", None)).status_code == 404
    for token, status in (("eye-key", 403), ("look-key", 403), ("bob-key", 404), ("ada-key", 202), ("x", 401)):
        async with guarded.client(token) as client:
            assert (await client.post(f"/api/jobs/{job}/approve")).status_code == status, token


async def test_a_restart_needs_an_editor(guarded, seeds):
    """It costs what a new job does; jobs of others are as none."""
    job = await store_job(seeds, status="failed", user_id=BOB)
    for token, status in (("eye-key", 403), ("look-key", 403), ("bob-key", 202), ("root-key", 202), ("x", 401)):
        async with guarded.client(token) as client:
            assert (await client.post(f"/api/jobs/{job}/restart")).status_code == status, token


# -- who may --------------------------------------------------------------------------------------------------------------


async def test_chunks_are_written_by_admins_alone(guarded):
    """Into an open namespace and a closed one, as through `POST /api/chunks/ingest`."""
    documents = ["a" * 64]
    for ns, token, status in (("docs", "ada-key", 403), ("docs", "root-key", 202), ("own", "ada-key", 403)):
        job = {"kind": "ingestion", "args": {"document_ids": documents, "ns": ns, "slot": "main"}}
        answer = await submit(guarded, {**DECK, "user_id": ADA, **job}, token)
        assert answer.status_code == status, answer.text


async def test_keys_of_users_have_their_own_jobs_only(guarded, seeds):
    """Another user's: 403 to submit for, 404 to read, revoke and read the deck of; admins and unbound keys see all."""
    job = await store_job(seeds)
    await store_deck(seeds, job)
    paths = (f"/api/jobs/{job}", f"/api/jobs/{job}/timeline", f"/api/presentations/{job}")
    for token, status in (("root-key", 200), ("eye-key", 200), ("ada-key", 200), ("bob-key", 404), ("x", 401)):
        assert [(await guarded.get(path, token)).status_code for path in paths] == [status] * 3, token
    assert (await submit(guarded, DECK, "bob-key")).status_code == 403
    assert (await submit(guarded, DECK, "ada-key")).status_code == 202
    own = {name: value for name, value in DECK.items() if name != "user_id"}
    assert (await submit(guarded, own, "ada-key")).status_code == 202
    assert (await submit(guarded, own, "eye-key")).status_code == 403
    assert (await submit(guarded, own, "look-key")).status_code == 403  # a viewer has nothing made that is paid
    for token, status in (("bob-key", 404), ("eye-key", 403)):
        async with guarded.client(token) as client:
            assert (await client.delete(f"/api/jobs/{job}")).status_code == status
    async with guarded.client("ada-key") as client:
        assert (await client.delete(f"/api/jobs/{job}")).status_code == 202


async def test_the_id_of_anothers_key_is_not_taken(guarded, seeds):
    """Refused from a bound key; where an operator's producer took it, the owner of the key hears so, and of no success."""
    job_id = job_id_of(ORG, ADA, "daily")
    event = {"job_id": job_id, "kind": "generation", "organization_id": "bolt", "user_id": "rob", "ts": 1,
             "args": orjson.dumps(DECK["args"]).decode(), "expires_at": None}  # fmt: skip
    refused = await guarded.post(
        f"/api/events/{JOB_SUBMITTED}", {**event, "organization_id": ORG, "user_id": ADA}, "ada-key"
    )
    assert (refused.status_code, refused.json()["reason"], refused.json()["field"]) == (422, "reserved_id", "job_id")
    malformed = {**event, "job_id": "x", "organization_id": ORG, "user_id": ADA}
    assert (await guarded.post(f"/api/events/{JOB_SUBMITTED}", malformed, "ada-key")).status_code == 422
    await store_job(seeds, job_id=job_id, organization_id="bolt", user_id="rob", args=event["args"])
    answer = await submit(guarded, DECK, "ada-key", Idempotency_Key="daily")
    assert (answer.status_code, answer.json()["field"]) == (422, "Idempotency-Key")
    assert job_id not in answer.text


async def test_conflicts_say_nothing_of_others(guarded, seeds):
    """A bound key learns of a job of its own under an id; of another's it hears what it hears of a new one."""
    stored = {ADA: await store_job(seeds), "rob": await store_job(seeds, organization_id="bolt", user_id="rob")}
    for token, known in (("ada-key", [ADA]), ("root-key", [ADA, "rob"])):
        event = {"kind": "generation", "organization_id": ORG, "user_id": ADA, "ts": 1, "expires_at": None,
                 "args": orjson.dumps({"query": "another", "slides": 2}).decode()}  # fmt: skip
        for owner, job_id in stored.items():
            answer = await guarded.post(f"/api/events/{JOB_SUBMITTED}", {**event, "job_id": job_id}, token)
            assert answer.status_code == 202, answer.text
            assert ("conflicts" in answer.json()) == (owner in known), (token, owner)


async def test_sessions_see_their_organization(guarded, seeds):
    """Jobs of colleagues are read by all and revoked by editors; an editor's session submits for its own organization alone."""
    job = await store_job(seeds)
    async with guarded.client("root-key") as client:

        async def session(**fields: Any) -> str:
            body = {"user_id": "eve", "organization_id": ORG, "plan": "enterprise", **fields}
            made: str = (await client.post("/api/sessions", json=body)).json()["session_id"]
            return made

        viewer, editor = await session(), await session(role="editor")
        other = await session(organization_id="else", role="editor")
    assert (await guarded.get(f"/api/jobs/{job}", viewer)).status_code == 200
    assert (await guarded.get(f"/api/jobs/{job}", other)).status_code == 404
    for token, status in ((viewer, 403), (editor, 202), (other, 404)):
        async with guarded.client(token) as client:
            assert (await client.delete(f"/api/jobs/{job}")).status_code == status
    bare = {"kind": "generation", "args": {"query": "q"}}
    assert [(await submit(guarded, bare, token)).status_code for token in (viewer, editor)] == [403, 202]
    assert (await submit(guarded, {**bare, "organization_id": ORG}, other)).status_code == 403
    assert (await submit(guarded, {**bare, "user_id": ADA}, editor)).status_code == 403


# -- lists and decks ------------------------------------------------------------------------------------------------------


async def test_jobs_of_an_organization_in_pages(api, guarded, seeds):
    """The newest first, none twice or left out, also where several are of one moment; of a bound key its own."""
    ids = []
    for n in range(7):
        at = NOW + timedelta(seconds=n // 3)
        user = BOB if n == 4 else ADA
        ids.append(await store_job(seeds, organization_id="pages", user_id=user, created_at=at, updated_at=at))
    found: list[str] = []
    cursor = ""
    while True:
        page = (await api.get(f"/api/organizations/pages/jobs?limit=3{cursor}")).json()
        found += [job["job_id"] for job in page["jobs"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert sorted(found) == sorted(ids)
    assert [{ids.index(one) // 3 for one in found[n : n + 3]} for n in (1, 4)] == [{1}, {0}]
    of_bob = (await guarded.get("/api/organizations/pages/jobs", "bob-key")).json()
    assert [job["job_id"] for job in of_bob["jobs"]] == [ids[4]]
    assert (await api.get("/api/organizations/pages/jobs?cursor=x")).status_code == 400
    assert (await api.get("/api/organizations/none/jobs")).json()["jobs"] == []


async def test_filters_of_a_list_work_or_are_refused(api, guarded, seeds):
    """By status, kind and user, together too; 422 for a value or a name that there is not, 403 for another user's."""
    jobs = [
        await store_job(seeds, organization_id="sifted", status=status, kind=kind, user_id=user)
        for status, kind, user in (
            ("failed", "export", ADA), ("failed", "generation", BOB), ("running", "generation", BOB)
        )
    ]  # fmt: skip

    async def listed(query: str, token: str | None = None) -> Any:
        answer = await (api if token is None else guarded).get(f"/api/organizations/sifted/jobs{query}", token)
        if answer.status_code != 200:
            return answer.status_code
        return {jobs.index(job["job_id"]) for job in answer.json()["jobs"]}

    assert await listed("") == {0, 1, 2}
    assert await listed("?status=failed") == {0, 1}
    assert await listed("?kind=generation") == {1, 2}
    assert await listed(f"?user_id={BOB}&status=failed") == {1}
    assert await listed("?status=expired") == set()
    for query in ("?status=broken", "?kind=dance", "?state=failed", "?status=failed&x=1"):
        assert await listed(query) == 422, query
    assert (await api.get("/api/organizations/sifted/jobs?state=failed")).json()["field"] == "state"
    assert await listed(f"?user_id={BOB}&status=running", "bob-key") == {2}
    assert await listed(f"?user_id={ADA}", "bob-key") == 403


async def submit(api: Api, body: dict[str, Any], token: str | None = None, **headers: str) -> httpx2.Response:
    """POST /api/jobs."""
    return await api.post("/api/jobs", body, token, **headers)


@pytest.fixture(scope="module")
async def seeds(seeds: Seeds, redis_url: str) -> Seeds:
    """The organization that most of its jobs are of has no limits."""
    await organization(redis_url, seeds, ORG, "enterprise", "active")
    return seeds


SLIDE = {"slide_id": "s1", "number": 1, "title": "One", "bullets": ["why"], "notes": ""}


async def store_deck(seeds: Seeds, presentation_id: str) -> None:
    """A deck of one slide."""
    await seeds.run(
        "INSERT INTO presentations VALUES ($1, $2, $3, 'Why', $4, 'jobs.generation-requested/0/3', $5)",
        presentation_id, ORG, ADA, orjson.dumps([SLIDE]).decode(), NOW,
    )  # fmt: skip


@pytest.mark.requirement("R2.43")
async def test_a_deck_as_it_is_served(redis_url, api, seeds):
    """With the number of views of its key, never below what is stored (R2.43); conditional, its version never falls."""
    deck = new_id()
    await store_deck(seeds, deck)
    path = f"/api/presentations/{deck}"
    first = await api.get(path)
    assert first.json() == {
        "presentation_id": deck,
        "organization_id": ORG,
        "user_id": ADA,
        "title": "Why",
        "slides": [SLIDE],
        "view_count": 0,
        "created_at": "2026-11-20T12:00:00Z",
        "position": "jobs.generation-requested/0/3",
    }
    assert (await api.get(path, If_None_Match=first.headers["etag"])).status_code == 304
    async with Redis.from_url(redis_url) as redis:
        await redis.set(f"presentation_view_count:{deck}", 8)
        await seeds.run("INSERT INTO presentation_shares VALUES ($1, 5)", deck)
        second = await api.get(path, If_None_Match=first.headers["etag"])
        assert second.json()["view_count"] == 8
        await redis.delete(f"presentation_view_count:{deck}")
        third = await api.get(path, If_None_Match=second.headers["etag"])
        assert third.json()["view_count"] == 5
        assert await redis.get(f"presentation_view_count:{deck}") == b"5"
    versions = [int(answer.headers["x-resource-version"]) for answer in (first, second, third)]
    assert versions == sorted(versions)
    assert (await api.get(f"/api/presentations/{new_id()}")).status_code == 404


# -- restarting many ------------------------------------------------------------------------------------------------------


async def test_failed_jobs_are_restarted_together(redis_url, stack, guarded, seeds, codec):
    """The plan changes nothing and says why they failed; an admin's request restarts what it finds, and is recorded."""
    org = f"org-{new_id()[:8]}"
    await organization(redis_url, seeds, org, "enterprise", "active")
    at = NOW - timedelta(hours=1)
    failed = {"organization_id": org, "status": "failed", "completed_at": at, "steps_total": 5}
    first, second = [
        await store_job(seeds, **failed, error=f"no model: slide {number}", steps_done=2) for number in range(2)
    ]
    other = await store_job(seeds, **failed, error="timeout", steps_done=0)
    await store_job(seeds, organization_id=org, status="completed")
    path = f"/api/organizations/{org}/jobs/restart"
    async with guarded.client("root-key") as client:
        plan = (await client.get(path)).json()
        assert (plan["executed"], plan["found"], plan["refusal"], plan["steps_left"]) == (False, 3, None, 3 + 3 + 5)
        assert plan["reasons"] == [{"reason": "no model", "jobs": 2}, {"reason": "timeout", "jobs": 1}]
        for asked, ids in (
            ({"reason": "NO MODEL"}, {first, second}),
            ({"step": 0}, {other}),
            ({"to": at.isoformat()}, set()),
            ({"from": at.isoformat()}, {first, second, other}),
            ({"user_id": BOB}, set()),
        ):
            found = (await client.get(path, params=asked)).json()
            assert {one["job_id"] for one in found["jobs"]} == ids, asked
        answer = await client.post(path, json={"reason": "no model", "job_ids": [first, other]})
        assert (answer.status_code, [one["job_id"] for one in answer.json()["jobs"]]) == (202, [first])
        (position,) = answer.json()["positions"]
        event = codec.decode(CONTROL, record_at(stack, position).value())
        assert (event["job_id"], event["action"]) == (first, "restart")
        assert (await client.get(path, params={"from": "soon"})).status_code == 422
        answer = await client.post(path, json={"job_ids": ["no-job", new_id()]})
        assert (answer.status_code, answer.json()["jobs"]) == (202, [])
    for token, status in (("eye-key", 403), ("ada-key", 403), ("rob-key", 403)):
        async with guarded.client(token) as client:
            assert (await client.post(path, json={})).status_code == status, token


async def test_jobs_that_are_named_are_read_alone(seeds):
    """A batch of a restart reads its own jobs, not all that failed: one row is enough for one that failed long ago."""
    org = f"org-{new_id()[:8]}"
    first, second = [
        await store_job(seeds, organization_id=org, status="failed", completed_at=NOW - timedelta(hours=hours))
        for hours in (2, 1)
    ]
    async with asyncpg.create_pool(seeds.url, min_size=1, max_size=1) as pool:

        async def read(job_ids: list[str] | None) -> list[str]:
            span = (TS_MS_MIN, TS_MS_MAX)
            return [job.job_id for job in await failed_jobs(pool, org, None, None, span, 1, job_ids=job_ids)]

        assert [await read(names) for names in (None, [first], ["no-job"])] == [[second], [first], []]


async def test_jobs_that_the_plan_forbids_are_not_restarted(redis_url, guarded, seeds):
    """The plan of the restart says which limit is in the way; the request is refused with it, and nothing is published."""
    org = f"org-{new_id()[:8]}"
    await organization(redis_url, seeds, org, "enterprise", "suspended")
    await store_job(seeds, organization_id=org, status="failed", error="no model")
    path = f"/api/organizations/{org}/jobs/restart"
    async with guarded.client("root-key") as client:
        assert "suspended" in (await client.get(path)).json()["refusal"]
        assert (await client.post(path, json={})).status_code == 403
