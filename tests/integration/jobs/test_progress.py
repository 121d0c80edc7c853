"""The materializer of jobs on a real Redis: streams, checkpoints, usage, wake-ups, and redelivered events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest

from highwater.connectors.identity.statements import QUERIES as METER
from highwater.connectors.jobs.progress import Progress
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.redis.link import RedisAwayError, RedisLink
from highwater.schemas.jobs import CHECKPOINT_SAVED, PROGRESS
from highwater.streams.clock import to_datetime
from tests.conftest import Stack
from tests.integration.connecting import fresh, running, send, until
from tests.integration.databases import own_database
from tests.integration.jobs.watching import AT_MS, checkpoint, materialize, new_id, step, steps, tombstone, used


@pytest.fixture(scope="module")
async def context(stack: Stack) -> AsyncIterator[ProcessContext]:
    """An empty database."""
    async with own_database(stack) as made:
        yield made


@pytest.fixture
def progress(context: ProcessContext, link: RedisLink) -> Progress:
    """The materializer."""
    return Progress(context.pool, link)


async def entries(link: RedisLink, job_id: str) -> list[tuple[str, dict[str, str]]]:
    """The entries of a stream."""
    found = await link.client.xrange(f"gen_progress:{job_id}")
    return [(name.decode(), {k.decode(): v.decode() for k, v in fields.items()}) for name, fields in found]


async def held(link: RedisLink, name: str) -> dict[str, str]:
    """The fields of a hash."""
    return {k.decode(): v.decode() for k, v in (await link.client.hgetall(name)).items()}


# -- streams --------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R2.17")
async def test_an_entry_is_as_catalogued(link, progress):
    """R2.17: the number is the id, the percents are text, unknown fields are left out, a message belongs to errors alone."""
    job = new_id()
    first = step(job, 1, "slide_started", pct=40, slide_number=7, slide_id="s7", slide_title="Why", error_message="no")
    last = step(job, 2, "error", pct=46, error_message="it failed")
    assert await materialize(progress, [first, last]) == []
    assert await entries(link, job) == [
        (
            "1-0",
            {
                "event_type": "slide_started",
                "slide_number": "7",
                "slide_id": "s7",
                "slide_title": "Why",
                "progress_pct": "40",
                "timestamp": str(AT_MS + 1),
            },
        ),
        (
            "2-0",
            {
                "event_type": "error",
                "progress_pct": "46",
                "timestamp": str(AT_MS + 2),
                "error_message": "it failed",
            },
        ),
    ]
    assert 7_190 < await link.client.ttl(f"gen_progress:{job}") <= 7_200


@pytest.mark.requirement("R2.19")
@pytest.mark.parametrize("batch", [1, 7, 250])
async def test_250_events_leave_exactly_200(link, progress, batch):
    """R2.19, however they are batched."""
    job = new_id()
    events = steps(job, 1, 250, is_done=True)
    for first in range(0, 250, batch):
        await materialize(progress, events[first : first + batch])
    assert [name for name, _ in await entries(link, job)] == [f"{seq}-0" for seq in range(51, 251)]


async def test_what_is_delivered_again_adds_nothing(link, progress):
    """The same batch, a part of it, or one that overlaps: each number is there once, and the time is not renewed."""
    job = new_id()
    await materialize(progress, steps(job, 1, 10))
    await link.client.expire(f"gen_progress:{job}", 100)
    before = await entries(link, job)
    assert await materialize(progress, steps(job, 1, 10)) == []
    assert await materialize(progress, steps(job, 4, 6)) == []
    assert await entries(link, job) == before
    assert await link.client.ttl(f"gen_progress:{job}") <= 100
    assert await materialize(progress, steps(job, 8, 12)) == []
    assert [name for name, _ in await entries(link, job)] == [f"{seq}-0" for seq in range(1, 13)]


async def test_progress_out_of_range_or_going_back_is_a_dead_letter(link, progress):
    """This also holds when the batch is retried; an end is still shown, and does not go back."""
    job = new_id()
    batch = [
        step(job, 1, pct=50),
        step(job, 2, pct=101),
        step(job, 3, pct=-1),
        step(job, 4, pct=49),
        step(job, 0, pct=60),
        step(job, 5, "error", pct=0, error_message="revoked"),
    ]
    for _ in range(2):
        dead = await materialize(progress, batch)
        assert sorted((letter.record.offset, letter.reason) for letter in dead) == [
            (0, "bad_seq"),
            (2, "bad_progress"),
            (3, "bad_progress"),
            (4, "progress_went_back"),
        ]
    assert [(name, fields["progress_pct"]) for name, fields in await entries(link, job)] == [
        ("1-0", "50"),
        ("5-0", "50"),
    ]


@pytest.mark.requirement("R2.22")
async def test_each_step_is_broadcast(link, progress):
    """After its entry is there, with its fields and the entry's id (R2.22); one that goes back is not."""
    job, other = new_id(), new_id()
    async with link.client.pubsub() as listening:
        await listening.subscribe("pubsub:gen_progress")
        assert (await listening.get_message(timeout=5))["type"] == "subscribe"
        end = step(job, 7, "error", pct=0, error_message="x")
        await materialize(progress, [*steps(job, 1, 5), step(job, 6, pct=0), end, step(other, 1)])
        messages = []
        while message := await listening.get_message(timeout=0.5):
            messages.append(orjson.loads(message["data"]))
    ours = [message for message in messages if message["job_id"] in {job, other}]
    assert {message["user_id"] for message in ours} == {"ada"}
    for of in (job, other):
        events = [message["event"] for message in ours if message["job_id"] == of]
        assert [(event.pop("id"), event) for event in events] == await entries(link, of)


# -- checkpoints ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R2.11", "R2.12")
async def test_a_checkpoint_is_as_catalogued(link, progress):
    """R2.11, with an hour from each one (R2.12)."""
    job = new_id()
    await materialize(progress, [checkpoint(job, done=6)])
    await link.client.expire(f"gen_checkpoint:{job}", 5)
    await materialize(progress, [checkpoint(job, done=2)])
    assert await held(link, f"gen_checkpoint:{job}") == {
        "job_id": job,
        "presentation_id": job,
        "status": "running",
        "outline": '{"title": "T"}',
        "slides_completed": "2",
        "slides_total": "15",
        "completed_slide_ids": '["s1","s2"]',
        "last_updated": "2023-11-14T22:13:20Z",
        "worker_id": "9",
        "langgraph_state": "{}",
        "epoch": "1",
    }
    assert 3_590 < await link.client.ttl(f"gen_checkpoint:{job}") <= 3_600


@pytest.mark.requirement("R2.14")
async def test_a_failed_one_keeps_the_time_it_has_left(link, progress):
    """R2.14: only its status changes; where nothing is held any more it is written with a time."""
    job, lost = new_id(), new_id()
    await materialize(progress, [checkpoint(job, done=7)])
    await link.client.expire(f"gen_checkpoint:{job}", 100)
    await materialize(progress, [checkpoint(job, done=9, status="failed"), checkpoint(lost, status="failed")])
    found = await held(link, f"gen_checkpoint:{job}")
    assert (found["status"], found["slides_completed"]) == ("failed", "7")
    assert await link.client.ttl(f"gen_checkpoint:{job}") <= 100
    assert 3_590 < await link.client.ttl(f"gen_checkpoint:{lost}") <= 3_600


@pytest.mark.requirement("R2.15")
async def test_a_lower_epoch_never_replaces_a_higher(link, progress):
    """R2.15: what a revived worker saved late is passed over."""
    job = new_id()
    await materialize(progress, [checkpoint(job, epoch=3, done=8), checkpoint(job, epoch=2, done=7)])
    await materialize(progress, [checkpoint(job, epoch=2, done=9, status="failed")])
    found = await held(link, f"gen_checkpoint:{job}")
    assert (found["epoch"], found["slides_completed"], found["status"]) == ("3", "8", "running")


@pytest.mark.requirement("R2.13")
async def test_a_tombstone_deletes(link, progress):
    """R2.13, also before and behind other checkpoints of a batch; and the number of views of an erased deck."""
    job, other = new_id(), new_id()
    await link.client.set(f"presentation_view_count:{job}", 3)
    await materialize(progress, [checkpoint(job), checkpoint(other), tombstone(job)])
    assert await link.client.exists(f"gen_checkpoint:{job}", f"presentation_view_count:{job}") == 0
    assert await link.client.exists(f"gen_checkpoint:{other}") == 1


# -- usage ----------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R2.35", "R2.36")
async def test_usage_counts_each_number_once(link, progress):
    """R2.35, R2.36: three deliveries of a usage are one; 90 days from each."""
    org = fresh("org")
    await materialize(progress, [used(org, 1), used(org, 1)])
    await materialize(progress, [used(org, 1), used(org, 2, cents=1), used(org, 2, cents=1)])
    assert await held(link, f"usage:{org}:2023-11") == {
        "presentations": "2",
        "slides": "30",
        "tokens": "200",
        "cost_cents": "30",
        "seq": "2",
        "at": str(AT_MS + 2),
    }
    assert 7_775_990 < await link.client.ttl(f"usage:{org}:2023-11") <= 7_776_000


async def test_usage_that_does_not_follow_is_read_from_postgres(context, link, progress):
    """After Redis was emptied the totals are the counted ones, and continue from there."""
    org = fresh("org")
    await materialize(progress, [used(org, n) for n in (1, 2, 3)])
    for n in range(4):
        at = to_datetime(AT_MS + n)
        await context.pool.execute(METER["count_usage"], org, "2023-11", new_id(), 1, 15, 100, 29, at)
    await link.client.delete(f"usage:{org}:2023-11")
    await materialize(progress, [used(org, 4)])
    found = await held(link, f"usage:{org}:2023-11")
    assert (found["presentations"], found["slides"], found["tokens"], found["cost_cents"]) == ("4", "60", "400", "116")
    await materialize(progress, [used(org, 4), used(org, 5)])
    assert (await held(link, f"usage:{org}:2023-11"))["cost_cents"] == "145"


# -- the consumer ---------------------------------------------------------------------------------------------------------


async def test_it_reads_the_log_tombstones_too(stack, context, link, progress):
    """From Kafka: entries, a checkpoint, and its end, which is not a dead letter."""
    job = new_id()
    codec = context.codec
    key = job.encode()

    def sent(topic: str, *events: object) -> None:
        values = [None if event.record.value is None else codec.encode(topic, event.value) for event in events]  # type: ignore[attr-defined]
        send(stack.kafka, topic, [(key, value) for value in values], partitioner="murmur2_random")

    async with running(BatchConsumer(progress, context)):
        await asyncio.to_thread(sent, PROGRESS, *steps(job, 1, 3))
        await asyncio.to_thread(sent, CHECKPOINT_SAVED, checkpoint(job))
        await until(lambda: link.client.exists(f"gen_checkpoint:{job}"), "the checkpoint is there")
        await asyncio.to_thread(sent, CHECKPOINT_SAVED, tombstone(job))

        async def is_gone() -> bool:
            return not await link.client.exists(f"gen_checkpoint:{job}")

        await until(is_gone, "the checkpoint is gone")
        assert len(await entries(link, job)) == 3
    assert await context.pool.fetchval("SELECT count(*) FROM outbox WHERE topic = $1", f"{CHECKPOINT_SAVED}.dlq") == 0


async def test_it_waits_while_redis_is_away(stack, context, link, progress):
    """The batch is refused, so its events wait in the log; written once Redis is back."""
    job = new_id()
    await asyncio.to_thread(stack.local.stop_part, "redis")
    try:
        with pytest.raises(RedisAwayError):
            await materialize(progress, steps(job, 1, 3))
    finally:
        await asyncio.to_thread(stack.local.start_part, "redis")
    await until(lambda: link.is_up, "the link is back")
    assert await materialize(progress, steps(job, 1, 3)) == []
    assert len(await entries(link, job)) == 3
