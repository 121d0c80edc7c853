"""The engine of jobs on a real database and a real HTTP service: each step once, come what may."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from highwater.api.jobs.routes import result_url
from highwater.connectors.engines.watch import LOOK_SECONDS
from highwater.connectors.jobs.engine import JobEngine
from highwater.connectors.jobs.steps import Done, JobFailedError, Step
from highwater.connectors.jobs.store import Change, Deck, job_of, store_changes
from highwater.connectors.postgres.pool import Connection, transaction
from highwater.schemas.errors import UnavailableError
from highwater.schemas.jobs import CHECKPOINT_SAVED, GENERATION_REQUESTED, PROGRESS, USAGE_RECORDED
from highwater.streams.jobs.decks import of_job, slide_id
from highwater.streams.jobs.jobs import Job, finished, stepped, taken
from highwater.streams.jobs.progress import STEP_COMPLETED, ProgressReport
from highwater.streams.jobs.states import Kind
from tests.integration.connecting import until
from tests.integration.engines import LEASE_MS, Worker
from tests.integration.jobs.making import Jobs
from tests.integration.models.scripted_llm import answer, status


def stages(slides: int) -> list[str]:
    """The calls of a deck."""
    return ["outline", *(f"slide-{number}" for number in range(1, slides + 1))]


def slide_ids(job_id: str, slides: int) -> list[str]:
    """The UUIDs of a deck's slides."""
    return [slide_id(job_id, number) for number in range(1, slides + 1)]


@pytest.mark.requirement("R2.16")
async def test_a_deck_from_a_command_to_its_end(j: Jobs):
    """One call for the outline and one a slide; a checkpoint after each, dense progress, and the deck counted once."""
    worker = j.worker()
    job_id = await j.submit(slides=3)
    await j.request(worker, job_id)
    row = await j.until_status(job_id, "completed")
    assert [call.stage for call in j.llm.calls] == stages(3)
    assert {(call["outcome"], call["sends"], call["user_id"]) for call in await j.calls(job_id)} == {
        ("answered", 1, None)
    }
    saved, ids = await j.events(CHECKPOINT_SAVED), slide_ids(job_id, 3)
    assert [None if one is None else (one["slides_completed"], one["completed_slide_ids"]) for one in saved] == [
        (0, []),
        (1, ids[:1]),
        (2, ids[:2]),
        (3, ids),
        None,
    ]
    told = await j.events(PROGRESS)
    assert [(one["seq"], one["event_type"], one["slide_number"], one["progress_pct"]) for one in told] == [
        (1, "slide_started", 1, 0),
        (2, "slide_completed", 1, 33),
        (3, "slide_started", 2, 33),
        (4, "slide_completed", 2, 66),
        (5, "slide_started", 3, 66),
        (6, "slide_completed", 3, 100),
        (7, "generation_done", None, 100),
    ]
    deck = await j.deck(job_id)
    assert deck is not None
    assert [(one["slide_id"], one["number"], one["title"]) for one in deck["slides"]] == [
        (ids[0], 1, "Part 1"),
        (ids[1], 2, "Part 2"),
        (ids[2], 3, "Part 3"),
    ]
    assert (row["worker"], row["lease_until_ms"], row["checkpoint"], row["seq"]) == (None, None, None, 7)
    # Four calls of 100 and 20 tokens at 1,000 and 2,000 dollars a million: 14 cents each.
    assert (row["tokens"], row["cost_cents"], row["steps_done"], row["steps_total"]) == (480, 56, 3, 3)
    assert await j.events(USAGE_RECORDED) == [
        {
            "organization_id": "acme", "job_id": job_id, "period": "2023-11", "seq": 1, "presentations": 1, "slides": 3,
            "tokens": 480, "cost_cents": 56, "built_in_tokens": 0, "at": j.time(),
        }
    ]  # fmt: skip


async def test_documents_are_what_a_deck_is_made_from(j: Jobs):
    """The text of a document for a slide is in the call for it; a document of another organization is missing."""
    worker = j.worker()
    text = "KRaft replaces ZooKeeper.\n\n" + "Nothing of note here. " * 2_000 + "\n\nPoint 2 is about tiered storage."
    mine, theirs = await j.put(text), await j.put("secret", organization="umbrella")
    job_id = await j.submit(slides=2, documents=[mine])
    refused = await j.submit(slides=2, documents=[mine, theirs])
    await j.request(worker, job_id, refused)
    await j.until_status(job_id, "completed")
    slide = json.loads(j.llm.seen("slide-2")[0].user)
    assert any("tiered storage" in source["text"] for source in slide["sources"])
    row = await j.until_status(refused, "failed")
    assert theirs in row["error"]
    assert (await j.events(PROGRESS))[-1]["event_type"] in ("error", "generation_done")
    assert [call.key for call in j.llm.calls if call.key and call.key.startswith(refused)] == []


async def test_a_model_that_reads_less_is_sent_fewer_passages(j: Jobs):
    """Its refusal says how much: the deck is made from the passages that fit, and what they are is in the calls."""
    worker = j.worker()
    text = "".join(
        f"Berth {number} is closed at low water, for the crane of the harbour waits. \n\n" for number in range(900)
    )
    document = await j.put(text)
    j.llm.window_tokens = 4_096
    job_id = await j.submit(slides=2, documents=[document])
    await j.request(worker, job_id)
    await j.until_status(job_id, "completed")
    outline, *slides = await j.calls(job_id)
    assert [call["outcome"] for call in (outline, *slides)] == ["unusable", "answered", "answered", "answered"]
    assert "Berth" in j.llm.seen("outline")[-1].user


async def test_an_outline_is_looked_at_before_slides_are_paid(j: Jobs):
    """One call, no deck and nothing counted; the outline that its reader changed is what the deck is made of, without another."""
    worker = j.worker()
    first = await j.submit(args={"query": "What is KRaft?", "slides": 3, "outline_only": True})
    await j.request(worker, first)
    row = await j.until_status(first, "completed")
    assert [call.stage for call in j.llm.calls] == ["outline"]
    assert (await j.deck(first), (await j.events(USAGE_RECORDED))[0]["presentations"]) == (None, 0)
    outline = json.loads(row["result"])["outline"]
    assert [slide["title"] for slide in outline["slides"]] == ["Part 1", "Part 2", "Part 3"]
    assert result_url("generation", first, json.loads(row["result"])) is None
    changed = {"title": outline["title"], "slides": [outline["slides"][2], {"title": "My own", "points": ["a point"]}]}
    second = await j.submit(args={"query": "What is KRaft?", "outline": changed})
    await j.request(worker, second)
    await j.until_status(second, "completed")
    assert [call.stage for call in j.llm.calls] == ["outline", "slide-1", "slide-2"]
    assert [json.loads(call.user)["title"] for call in j.llm.calls[1:]] == ["Part 3", "My own"]
    assert len((await j.deck(second) or {})["slides"]) == 2


async def test_slides_wait_for_an_approval(j: Jobs):
    """The wait uses no worker and no slot, a killed worker does not end it, and the deck has the approved outline."""
    worker = j.worker(begun_max=1)
    waits = await j.submit(args={"query": "What is KRaft?", "slides": 3, "await_approval": True})
    await j.request(worker, waits)
    row = await j.until_awaiting(waits)
    assert (row["status"], row["due_ms"], row["steps_total"]) == ("running", j.time() + 86_400_000, 3)
    other = await j.submit(slides=1, cache=False)
    await j.request(worker, other)  # with one place an organization, which the job that waits would hold
    await j.until_status(other, "completed")
    await worker.die()
    later = j.worker(begun_max=1)
    edited = {"title": "Mine", "slides": [{"title": "First", "points": ["a"]}, {"title": "Second", "points": []}]}
    await j.approve(later, waits, edited)
    await j.approve(later, waits, {**edited, "title": "Too late"})
    await j.until_status(waits, "completed")
    asked = [call for call in j.llm.calls if call.key and call.key.startswith(waits)]
    assert [call.stage for call in asked] == ["outline", "slide-1", "slide-2"]
    assert [json.loads(call.user)["title"] for call in asked[1:]] == ["First", "Second"]
    told = [(one["seq"], one["event_type"]) for one in await j.events(PROGRESS) if one["job_id"] == waits]
    assert told[:2] == [(1, "outline_ready"), (2, "slide_started")]
    assert [seq for seq, _ in told] == list(range(1, 7))
    same = await j.submit(args={"query": "What is KRaft?", "outline": edited})
    await j.request(later, same)
    await j.until_status(same, "completed")
    replayed = [call.user for call in j.llm.calls if call.key and call.key.startswith(same)]
    assert replayed[0] == asked[1].user  # to the byte what a job asks that was given the outline
    decks = [await j.deck(job_id) for job_id in (waits, same)]
    assert [(deck or {})["title"] for deck in decks] == ["Mine", "Mine"]


async def test_an_outline_that_nobody_approves(j: Jobs):
    """The job fails at its deadline with that reason, unless it is approved first; restarted, it waits again, without a call."""
    worker = j.worker()
    args = {"query": "What is KRaft?", "slides": 2, "await_approval": True, "approval_timeout_seconds": 600}
    job_id = await j.submit(args=args)
    await j.request(worker, job_id)
    await j.until_awaiting(job_id)
    j.time.now_ms += 600_000
    row = await j.until_status(job_id, "failed")
    assert row["error"] == "nobody approved the outline by 2023-11-14T22:23:20Z; restart the job to wait again"
    assert (row["approval_until_ms"], row["due_ms"]) == (None, None)
    await j.approve(worker, job_id)
    assert await j.job(job_id) == row
    await j.restart(worker, job_id)
    assert (await j.until_awaiting(job_id))["approval_until_ms"] == j.time() + 600_000
    await j.approve(worker, job_id)
    await j.until_status(job_id, "completed")
    assert j.llm.by_stage() == {"outline": 1, "slide-1": 1, "slide-2": 1}
    assert [one["event_type"] for one in await j.events(PROGRESS)][:4] == [
        "outline_ready", "error", "job_restarted", "outline_ready",
    ]  # fmt: skip


async def test_one_slide_is_made_anew(j: Jobs):
    """One call, whose input has the points of the others; the others are copied into a new deck, under its own ids."""
    worker = j.worker()
    first = await j.submit(slides=3)
    await j.request(worker, first)
    await j.until_status(first, "completed")
    before = await j.deck(first)
    assert before is not None
    j.llm.calls.clear()
    second = await j.submit(args={"query": "Shorter, please.", "presentation_id": first, "remake": [2]})
    missing = await j.submit(args={"query": "x", "presentation_id": first, "remake": [4]})
    theirs = await j.submit(args={"query": "x", "presentation_id": first, "remake": [1]}, organization="umbrella")
    await j.request(worker, second, missing, theirs)
    await j.until_status(second, "completed")
    after = await j.deck(second)
    assert after is not None
    (call,) = [call for call in j.llm.calls if call.key and call.key.startswith(second)]
    asked = json.loads(call.user)
    assert (call.stage, asked["query"], asked["number"]) == ("slide-2", "Shorter, please.", 2)
    assert asked["said"] == [
        bullet for slide in (before["slides"][0], before["slides"][2]) for bullet in slide["bullets"]
    ]
    copied = [before["slides"][0], before["slides"][2]]
    assert [after["slides"][0], after["slides"][2]] == of_job(copied, second)
    assert [one["slide_id"] for one in after["slides"]] == slide_ids(second, 3)
    assert (await j.deck(first)) == before
    assert "has no slide 4" in (await j.until_status(missing, "failed"))["error"]
    assert "there is no presentation" in (await j.until_status(theirs, "failed"))["error"]


@pytest.mark.requirement("R2.15")
async def test_a_worker_killed_after_slide_7_of_15(j: Jobs):
    """The next one generates slides 8 to 15: only the interrupted call is sent twice, under its key (R2.15)."""
    worker = j.worker()
    held = j.llm.hold("slide-8")
    job_id = await j.submit(slides=15)
    await j.request(worker, job_id)
    await asyncio.to_thread(held.reached.wait, 20)
    assert (await j.job(job_id))["progress_pct"] == 46
    await worker.die()
    other = j.worker()
    requested = await until(lambda: j.events(GENERATION_REQUESTED), "it is asked for again")
    assert [one["job_id"] for one in requested] == [job_id]
    await j.request(other, job_id)
    await j.until_status(job_id, "completed")
    assert j.llm.by_key() == {f"{job_id}/{stage}/1": 2 if stage == "slide-8" else 1 for stage in stages(15)}
    deck = await j.deck(job_id)
    assert deck is not None
    assert [slide["slide_id"] for slide in deck["slides"]] == slide_ids(job_id, 15)
    assert [one["seq"] for one in await j.events(PROGRESS)] == list(range(1, 32))
    saved = [one for one in await j.events(CHECKPOINT_SAVED) if one is not None]
    assert [one["slides_completed"] for one in saved] == list(range(16))
    assert [one["completed_slide_ids"] for one in saved] == [slide_ids(job_id, n) for n in range(16)]
    assert [one["epoch"] for one in saved] == [1] * 8 + [3] * 8
    assert len(await j.events(USAGE_RECORDED)) == 1


async def test_an_answer_that_was_stored_is_not_asked_for_again(j: Jobs):
    """A worker that ends between an answer and its checkpoint: the next worker of the job reads the answer."""
    worker = j.worker()
    job_id = await j.submit(slides=1)
    held = j.llm.hold("slide-1")
    await j.request(worker, job_id)
    await asyncio.to_thread(held.reached.wait, 10)
    await worker.die()
    slide = json.dumps({"title": "Stored", "bullets": ["it was said before"]})
    await j.context.pool.execute(
        "UPDATE llm_calls SET outcome = 'answered', answer = $2, prompt_tokens = 1, completion_tokens = 1 "
        "WHERE run_id = $1 AND stage = 'slide-1'", job_id, slide,
    )  # fmt: skip
    other = j.worker()
    await until(lambda: j.events(GENERATION_REQUESTED), "it is asked for again")
    await j.request(other, job_id)
    await j.until_status(job_id, "completed")
    deck = await j.deck(job_id)
    assert deck is not None
    assert deck["slides"][0]["title"] == "Stored"
    assert len(j.llm.seen("slide-1")) == 1


@pytest.mark.requirement("R2.15")
async def test_a_revived_worker_overwrites_nothing(j: Jobs):
    """Silent until its lease ended, it finds another running, then at the end: what it has to say is not stored (R2.15)."""
    worker = j.worker()
    held = j.llm.hold("slide-2")
    job_id = await j.submit(slides=3)
    await j.request(worker, job_id)
    await asyncio.to_thread(held.reached.wait, 10)
    stale = await _held(worker.engine, job_id)
    j.time.now_ms += LEASE_MS
    other = j.worker()
    await until(lambda: j.events(GENERATION_REQUESTED), "it is asked for again")
    again = j.llm.hold("slide-3")
    await j.request(other, job_id)
    await asyncio.to_thread(again.reached.wait, 10)
    at_work = await j.job(job_id)
    assert await _says(worker, stale, j.time()) == [None, None]
    assert await j.job(job_id) == at_work
    again.release.set()
    row = await j.until_status(job_id, "completed")
    before = (await j.events(PROGRESS), await j.events(CHECKPOINT_SAVED))
    assert await _says(worker, stale, j.time()) == [None, None]
    held.release.set()
    await until(_idle(worker.engine), "the revived worker lets go")
    assert (await j.job(job_id), (await j.events(PROGRESS), await j.events(CHECKPOINT_SAVED))) == (row, before)
    assert j.llm.by_stage() == {"outline": 1, "slide-1": 1, "slide-2": 2, "slide-3": 1}
    assert len(await j.events(USAGE_RECORDED)) == 1


async def _says(worker: Worker, stale: Job, now_ms: int) -> list[Job | None]:
    """The outcome of a step and of an end that a former worker stores with the job as it was then."""
    late = stepped(stale, {"slides": []}, 2, 3, lease_until_ms=0, now_ms=now_ms)
    ended = finished(stale, {"title": "stale"}, now_ms)
    store = worker.engine.store.store
    told = Change(stale, late, now_ms, (ProgressReport("slide_completed", 2),))
    return [*await store([told]), *await store([Change(stale, ended, now_ms, deck=Deck("stale", ()))])]


async def _held(engine: JobEngine, job_id: str) -> Job:
    async with engine.store._pool.acquire() as tx:
        return job_of(await tx.fetchrow("SELECT * FROM jobs WHERE job_id = $1", job_id))


def _idle(engine: JobEngine):
    async def look() -> bool:
        return not engine._tasks

    return look


async def test_commands_come_again_and_to_all(j: Jobs):
    """Each call of each job is made once, for any number of commands to any worker."""
    workers = [j.worker(), j.worker()]
    ids = [await j.submit(f"query {number}", slides=2) for number in range(6)]
    await asyncio.gather(*(j.request(worker, *ids) for worker in workers for _ in range(3)))
    for job_id in ids:
        await j.until_status(job_id, "completed")
    await asyncio.gather(*(j.request(worker, *ids) for worker in workers))
    assert set(j.llm.by_key().values()) == {1}
    assert len(j.llm.by_key()) == 6 * 3
    assert sorted(one["seq"] for one in await j.events(USAGE_RECORDED)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.requirement("R2.40")
async def test_a_job_revoked_during_a_call(j: Jobs):
    """The call is paid and counted once it is answered, and nothing else follows from it (R2.40)."""
    worker = j.worker()
    held = j.llm.hold("slide-1")
    job_id = await j.submit(slides=3)
    await j.request(worker, job_id)
    await asyncio.to_thread(held.reached.wait, 10)
    await j.revoke(job_id)
    before = await j.job(job_id)
    assert before["tokens"] == 120
    held.release.set()
    await until(_idle(worker.engine), "the worker lets go")
    after = await j.job(job_id)
    late = {name: after[name] for name in ("tokens", "cost_usd", "cost_cents", "epoch")}
    assert after == {**before, **late}
    assert (after["tokens"], after["cost_cents"]) == (240, 28)
    told = [
        (one["seq"], one["presentations"], one["tokens"], one["cost_cents"]) for one in await j.events(USAGE_RECORDED)
    ]
    assert told == [(1, 0, 120, 14), (2, 0, 120, 14)]
    assert j.llm.by_stage() == {"outline": 1, "slide-1": 1}
    assert [call["outcome"] for call in await j.calls(job_id)] == ["answered", "answered"]
    await j.request(worker, job_id)
    assert (await j.deck(job_id), len(await j.events(USAGE_RECORDED))) == (None, 2)
    assert len(j.llm.calls) == 2


@pytest.mark.requirement("R2.40")
async def test_a_job_that_expired_is_not_begun(j: Jobs):
    """It reports it and makes no call (R2.40); one that was begun in time is finished."""
    worker = j.worker()
    late, soon = await j.submit(expires_ms=j.time()), await j.submit(slides=1, expires_ms=j.time() + 1)
    held = j.llm.hold("outline")
    await j.request(worker, late, soon)
    await asyncio.to_thread(held.reached.wait, 10)
    j.time.now_ms += 10
    await worker.die()
    other = j.worker()
    await until(lambda: j.events(GENERATION_REQUESTED), "it is asked for again")
    await j.request(other, soon)
    row = await j.until_status(late, "expired")
    await j.until_status(soon, "completed")
    assert (row["worker"], row["completed_at"] is not None) == (None, True)
    told = [one for one in await j.events(PROGRESS) if one["job_id"] == late]
    assert [(one["seq"], one["event_type"], one["error_message"]) for one in told] == [(1, "error", row["error"])]


@pytest.mark.parametrize("stage", ["outline", "slide-2"])
async def test_two_timeouts_then_an_answer(j: Jobs, stage: str):
    """Three calls, due 2 and 4 s after the one before by the product's clock; watchers get the slide once."""
    worker = j.worker(timeout_seconds=0.3)
    j.llm.script(stage, "silent", "silent")
    job_id = await j.submit(slides=2)
    await j.request(worker, job_id)
    for attempt, wait_ms in ((2, 2_000), (3, 4_000)):
        row = await until(lambda n=attempt: _waits(j, job_id, n), f"attempt {attempt} is due later")
        assert (row["due_ms"], row["worker"], row["status"]) == (j.time() + wait_ms, None, "running")
        j.time.now_ms += wait_ms
    await j.until_status(job_id, "completed")
    assert [call.key for call in j.llm.seen(stage)] == [f"{job_id}/{stage}/{number}" for number in (1, 2, 3)]
    told = [(one["event_type"], one["slide_number"]) for one in await j.events(PROGRESS)]
    assert len(set(told)) == len(told)


async def _waits(j: Jobs, job_id: str, attempt: int) -> dict[str, object] | None:
    row = await j.job(job_id)
    return row if row["due_ms"] is not None and row["attempt"] == attempt else None


@pytest.mark.requirement("R2.14")
async def test_a_third_failure_ends_the_job(j: Jobs):
    """Its error is published and its checkpoint marked as failed; the usage of its calls is counted, and no deck (R2.14)."""
    worker = j.worker()
    j.llm.script("slide-2", "503", "503", "503")
    job_id = await j.submit(slides=2)
    await j.request(worker, job_id)
    for attempt in (2, 3):
        await until(lambda n=attempt: _waits(j, job_id, n), f"attempt {attempt} is due later")
        j.time.now_ms += 10_000
    row = await j.until_status(job_id, "failed")
    assert (len(j.llm.seen("slide-2")), row["progress_pct"], row["cost_cents"]) == (3, 50, 28)
    saved, told = (await j.events(CHECKPOINT_SAVED))[-1], (await j.events(PROGRESS))[-1]
    assert (saved["status"], saved["slides_completed"]) == ("failed", 1)
    assert (told["event_type"], told["error_message"], told["progress_pct"]) == ("error", row["error"], 50)
    assert (await j.deck(job_id), row["tokens"]) == (None, 240)  # answered calls were paid
    (used,) = await j.events(USAGE_RECORDED)
    assert (used["presentations"], used["slides"], used["tokens"], used["cost_cents"]) == (0, 0, 240, 28)


async def test_a_failed_job_goes_on_from_its_checkpoint(j: Jobs):
    """Restarted, only the failed slide is requested again, under new keys; its calls have a new limit, and only
    usage since then is counted.
    """
    worker = j.worker()
    j.llm.script("slide-2", status(400), "503", "503")
    job_id = await j.submit(slides=3)
    await j.request(worker, job_id)
    await j.until_status(job_id, "failed")
    await j.restart(worker, job_id)
    for attempt in (3, 4):
        await until(lambda n=attempt: _waits(j, job_id, n), f"attempt {attempt} is due later")
        j.time.now_ms += 10_000
    row = await j.until_status(job_id, "completed")
    keys = Counter({f"{job_id}/{stage}/1": 1 for stage in stages(3)})
    assert j.llm.by_key() == keys + Counter(f"{job_id}/slide-2/{attempt}" for attempt in (2, 3, 4))
    assert (row["error"], row["tokens"], row["cost_cents"], row["attempts_before"]) == (None, 480, 56, 0)
    told = [(one["seq"], one["event_type"], one["progress_pct"]) for one in await j.events(PROGRESS)]
    assert told == [
        (1, "slide_started", 0), (2, "slide_completed", 33), (3, "slide_started", 33), (4, "error", 33),
        (5, "job_restarted", 33), (6, "slide_completed", 66), (7, "slide_started", 66), (8, "slide_completed", 100),
        (9, "generation_done", 100),
    ]  # fmt: skip
    saved = [
        None if one is None else (one["status"], one["slides_completed"]) for one in await j.events(CHECKPOINT_SAVED)
    ]
    assert saved == [
        ("running", 0), ("running", 1), ("failed", 1), ("running", 1), ("running", 2), ("running", 3), None
    ]  # fmt: skip
    used = [(one["seq"], one["presentations"], one["slides"], one["tokens"]) for one in await j.events(USAGE_RECORDED)]
    assert used == [(1, 0, 0, 240), (2, 1, 3, 240)]


async def test_an_answer_that_was_paid_is_not_asked_for_again_after_a_restart(j: Jobs):
    """A job that failed since its workers ended takes the answer that its last call gave."""
    job_id = await j.submit(slides=1)
    for turn in range(4):
        worker = j.worker()
        held = j.llm.hold("slide-1")
        await until(lambda: _pending(j, job_id), f"it waits for turn {turn}")
        await j.request(worker, job_id)
        await asyncio.to_thread(held.reached.wait, 10)
        await worker.die()
    other = j.worker()
    await j.until_status(job_id, "failed")
    slide = '{"title": "Paid", "bullets": ["a"], "notes": "b"}'
    await j.context.pool.execute(
        "UPDATE llm_calls SET outcome = 'answered', answer = $2, prompt_tokens = 1, completion_tokens = 1 "
        "WHERE run_id = $1 AND stage = 'slide-1'", job_id, slide,
    )  # fmt: skip
    calls = len(j.llm.calls)
    await j.restart(other, job_id)
    await j.until_status(job_id, "completed")
    deck = await j.deck(job_id)
    assert deck is not None
    assert (deck["slides"][0]["title"], len(j.llm.calls)) == ("Paid", calls)


async def test_slots_are_shared_out_between_organizations(j: Jobs):
    """Eight jobs of one are requested before another's: that one has its slot at once, and none has more than the cap."""
    many = [await j.submit(slides=1) for _ in range(8)]
    one = await j.submit(slides=1, organization="umbrella")
    for _ in range(3):
        j.llm.hold("outline")
    workers = [j.worker(slots=2, begun_max=2), j.worker(slots=2, begun_max=2)]
    await j.request(workers[0], *many, one)
    await until(lambda: _has_called(j, 3), "three of four slots are taken")
    await asyncio.sleep(3 * LOOK_SECONDS)  # looks of both, of which nothing may come
    rows = await j.context.pool.fetch("SELECT organization_id FROM jobs WHERE status = 'running' ORDER BY 1")
    assert [row["organization_id"] for row in rows] == ["acme", "acme", "umbrella"]
    j.llm.release_all()
    for job_id in (*many, one):
        await j.until_status(job_id, "completed")


def _has_called(j: Jobs, count: int) -> bool:
    return len(j.llm.seen("outline")) == count


@pytest.mark.parametrize("bad", ["no JSON", '{"title": "x", "slides": []}'])
async def test_an_unusable_answer_is_asked_for_once_more(j: Jobs, bad: str):
    """At once, under another key; a second one ends the job."""
    worker = j.worker()
    j.llm.script("outline", answer(bad))
    job_id = await j.submit(slides=1)
    await j.request(worker, job_id)
    await j.until_status(job_id, "completed")
    assert [call.key for call in j.llm.seen("outline")] == [f"{job_id}/outline/1", f"{job_id}/outline/2"]
    j.llm.script("outline", answer(bad), answer(bad))
    other = await j.submit(slides=1)
    await j.request(worker, other)
    assert "Max retries" in (await j.until_status(other, "failed"))["error"]
    # An unusable answer was paid as well.
    assert (await j.job(job_id))["tokens"] == 360


@pytest.mark.requirement("R2.36")
async def test_29_cents_are_29(j: Jobs):
    """Two calls of 14.5 cents: the exact sum is rounded, once (R2.36)."""
    worker = j.worker()
    used = {"prompt_tokens": 145, "completion_tokens": 0}
    j.llm.script("outline", answer(usage=used))
    j.llm.script("slide-1", answer(usage=used))
    job_id = await j.submit(slides=1)
    await j.request(worker, job_id)
    assert (await j.until_status(job_id, "completed"))["cost_cents"] == 29
    assert [one["cost_cents"] for one in await j.events(USAGE_RECORDED)] == [29]


@pytest.mark.requirement("R2.41")
async def test_a_job_that_nobody_asks_for_is_found(j: Jobs):
    """R2.41: pending and silent for half a minute, it is taken without a command."""
    job_id = await j.submit(slides=1)
    j.worker()
    await asyncio.sleep(1.5)  # a search of the watch: nothing may come of it
    assert (await j.job(job_id))["status"] == "pending"
    j.time.now_ms += 30_001
    await j.until_status(job_id, "completed")


async def test_a_worker_that_ends_in_order_gives_back(j: Jobs):
    """Its job is requested at once, and the end does not count as a failure."""
    worker = j.worker()
    held = j.llm.hold("slide-1")
    job_id = await j.submit(slides=1)
    await j.request(worker, job_id)
    await asyncio.to_thread(held.reached.wait, 10)
    ending = asyncio.create_task(worker.end())
    row = await until(lambda: _pending(j, job_id), "it is given back")
    await ending
    assert (row["returns"], row["attempt"], row["worker"]) == (0, 1, None)
    assert [one["job_id"] for one in await j.events(GENERATION_REQUESTED)] == [job_id]


async def _pending(j: Jobs, job_id: str) -> dict[str, object] | None:
    row = await j.job(job_id)
    return row if row["status"] == "pending" else None


async def test_a_job_of_before_an_erasure_is_not_stored_as_the_next_of_its_key(j: Jobs):
    """Its user was erased and submitted another under the same key: the same id, status and epoch, but another event."""
    job_id = await j.submit()
    before = job_of(await j.context.pool.fetchrow("SELECT * FROM jobs WHERE job_id = $1", job_id))
    change = Change(before, taken(before, worker=1, lease_ms=1_000, now_ms=j.time(), command=None), j.time())
    await j.context.pool.execute("UPDATE jobs SET position = 'jobs.job-submitted/0/9' WHERE job_id = $1", job_id)
    async with transaction(j.context.pool) as tx:
        assert await store_changes(tx, j.context.codec, [change]) == {}
    assert await j.context.pool.fetchval("SELECT status FROM jobs WHERE job_id = $1", job_id) == "pending"


async def test_a_job_that_kills_its_workers_fails(j: Jobs):
    """After it was given back three times without a step in between."""
    job_id = await j.submit(slides=1)
    for turn in range(4):
        worker = j.worker()
        held = j.llm.hold("outline")
        await until(lambda: _pending(j, job_id), f"it waits for turn {turn}")
        await j.request(worker, job_id)
        await asyncio.to_thread(held.reached.wait, 10)
        await worker.die()
    j.worker()
    assert "4 times" in (await j.until_status(job_id, "failed"))["error"]


@pytest.mark.requirement("R2.39")
async def test_kinds_do_not_take_each_others_jobs(j: Jobs):
    """R2.39: a command or a search of one kind never touches another's."""
    job_id = await j.submit(kind=Kind.EXPORT, args={"presentation_id": "x", "format": "pdf"})
    worker = j.worker()
    await j.request(worker, job_id)
    j.time.now_ms += 60_000
    await asyncio.sleep(1.5)  # a search of the watch
    assert (await j.job(job_id))["status"] == "pending"


class Counting:
    """Three steps, each with an event and a row of its own."""

    def __init__(self) -> None:
        self.away = 1

    async def next(self, job: Job) -> Step | Done:
        """Return the next step; the first time a service is unavailable."""
        if self.away:
            self.away -= 1
            raise UnavailableError("away")
        done = (job.checkpoint or {"done": 0})["done"]
        if json.loads(job.args).get("bad") == done:
            raise JobFailedError("it cannot be done")
        if done == 3:
            return Done({"steps": done})

        async def apply(tx: Connection) -> None:
            await tx.execute("INSERT INTO presentation_shares VALUES ($1, $2)", f"{job.id}-{done}", done)

        return Step({"done": done + 1}, done + 1, 3, (ProgressReport(STEP_COMPLETED),), apply=apply)


async def test_steps_of_another_kind(j: Jobs):
    """The data of a step is stored with it; an unavailable service is waited for; nothing is counted as a deck."""
    worker = j.worker(Kind.INGESTION, Counting())
    good = await j.submit(kind=Kind.INGESTION, args={"x": 1})
    bad = await j.submit(kind=Kind.INGESTION, args={"bad": 2})
    await j.request(worker, good, bad)
    row, failed = await j.until_status(good, "completed"), await j.until_status(bad, "failed")
    assert (json.loads(row["result"]), row["steps_done"]) == ({"steps": 3}, 3)
    assert failed["error"] == "it cannot be done"
    told = [(one["event_type"], one["progress_pct"]) for one in await j.events(PROGRESS) if one["job_id"] == good]
    assert told == [
        ("job_started", 0), ("step_completed", 33), ("step_completed", 66), ("step_completed", 100), ("job_done", 100),
    ]  # fmt: skip
    assert await j.context.pool.fetchval("SELECT count(*) FROM presentation_shares") == 5
    assert (await j.events(USAGE_RECORDED), await j.deck(good)) == ([], None)


# -- the semantic cache ---------------------------------------------------------------------------------------------------


async def made(j: Jobs, query: str, **more: object) -> dict[str, object]:
    """The row of a deck that was made of a query, and whether it asked the model."""
    before = len(j.llm.calls)
    job_id = await j.submit(query, slides=2, **more)  # type: ignore[arg-type]
    await j.request(j.workers[0], job_id)
    row = await j.until_status(job_id, "completed")
    await until(_idle(j.workers[0].engine), "what comes afterwards is done")
    return {**row, "calls": len(j.llm.calls) - before, "deck": await j.deck(job_id)}


@pytest.fixture
async def cached(j: Jobs) -> AsyncIterator[Jobs]:
    """A worker with a cache, and a deck in it."""
    j.worker(has_cache=True)
    j.embedder.cosines = {"Explain KRaft": 0.96, "Describe KRaft": 0.9500001, "What is KRaft?": 0.94}
    await made(j, "KRaft")
    yield j
    await _entries(j, is_deleted=True)


async def _entries(j: Jobs, *, is_deleted: bool = False) -> list[dict[bytes, bytes]]:
    hashes = [
        row["hash"] for row in await j.context.pool.fetch("SELECT hash FROM semantic_vectors ORDER BY created_at")
    ]
    client = j.link.client
    found = [await client.hgetall(f"semantic_cache:{one}") for one in hashes]
    if is_deleted and hashes:
        await client.delete(*(f"semantic_cache:{one}" for one in hashes))
    return found


async def test_a_query_like_one_before_asks_nobody(cached: Jobs):
    """At a cosine of 0.96 the whole deck is there under its own question, free and not counted; hits prolong nothing."""
    client = cached.link.client
    (entry,) = await _entries(cached)
    assert (entry[b"hit_count"], entry[b"tokens_saved"], entry[b"original_query"]) == (b"0", b"360", b"KRaft")
    assert entry[b"created_at"].endswith(b"Z")
    (name,) = [row["hash"] for row in await cached.context.pool.fetch("SELECT hash FROM semantic_vectors")]
    assert 86_000 < await client.ttl(f"semantic_cache:{name}") <= 86_400
    await client.expire(f"semantic_cache:{name}", 1_000)
    row = await made(cached, "Explain KRaft")
    assert (row["calls"], row["tokens"], row["cost_cents"], row["steps_done"]) == (0, 0, 0, 2)
    assert row["deck"]["slides"] == of_job(json.loads(entry[b"response"])["slides"], str(row["job_id"]))  # type: ignore[index]
    assert row["deck"]["title"] == "Explain KRaft"  # type: ignore[index]
    assert (await _entries(cached))[0][b"hit_count"] == b"1"
    assert await client.ttl(f"semantic_cache:{name}") <= 1_000
    assert [(one["presentations"], one["tokens"]) for one in await cached.events(USAGE_RECORDED)] == [(1, 360), (0, 0)]
    assert (await cached.events(CHECKPOINT_SAVED))[-1] is None


@pytest.mark.requirement("R2.26")
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"query": "What is KRaft?"}, id="0.94"),
        pytest.param({"query": "KRaft 4.1"}, id="another number at the same place"),
        pytest.param({"query": "No KRaft"}, id="the opposite at the same place"),
        pytest.param({"cache": False}, id="asked for anew"),
        pytest.param({"organization": "umbrella"}, id="another organization"),
        pytest.param({"documents": ["a new document"]}, id="a new document"),
    ],
)
async def test_a_miss_asks_the_model(cached: Jobs, more: dict[str, object]):
    """Below 0.95, when something else is asked, in another organization, or with a new document (R2.26): three calls."""
    given: dict[str, object] = {"query": "KRaft", **more}
    if "documents" in given:
        given["documents"] = [await cached.put("a new document")]
    row = await made(cached, **given)  # type: ignore[arg-type]
    assert row["calls"] == 3
    assert all(entry[b"hit_count"] == b"0" for entry in await _entries(cached))


async def test_vectors_of_the_cache_are_paid(cached: Jobs):
    """A reused deck costs its question's vector; a regenerated one also that of its entry, after its end."""
    cached.embedder.tokens = 1_000
    row = await made(cached, "Explain KRaft")
    assert (row["tokens"], row["calls"]) == (1_000, 0)
    row = await made(cached, "No KRaft")
    told = [one["tokens"] for one in await cached.events(USAGE_RECORDED)]
    assert told[1:] == [1_000, 1_360, 1_000]


@pytest.mark.requirement("R2.25")
async def test_an_entry_that_is_gone_is_a_miss(cached: Jobs):
    """This holds for any contents of the index; the deck is stored again."""
    await _entries(cached, is_deleted=True)
    assert (await made(cached, "KRaft"))["calls"] == 3
    assert (await _entries(cached))[0][b"hit_count"] == b"0"


@pytest.mark.requirement("R2.25")
async def test_exactly_095_is_a_hit(cached: Jobs):
    """R2.25: at 0.95 or above."""
    assert (await made(cached, "Describe KRaft"))["calls"] == 0


async def test_without_redis_decks_are_made_all_the_same(cached: Jobs):
    """The cache is an accelerator: away, it is a miss."""
    cached.link.is_up = False
    try:
        assert (await made(cached, "KRaft"))["calls"] == 3
    finally:
        cached.link.is_up = True
