"""Listeners of jobs without Redis: what a window covers, gaps, and what is published to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest

import highwater.api.app  # noqa: F401 - the routes know their converters once the application was put together
from highwater.api.core.errors import BadRequestError
from highwater.api.jobs.cli_jobs import _parsed
from highwater.api.jobs.frames import entry_frame, gap_frames
from highwater.api.jobs.routes import job_id_of, place_after
from highwater.api.jobs.stream import WINDOW_MAX, Channel, JobHub
from highwater.connectors.jobs.read_model import JobRead
from highwater.connectors.jobs.streams import Entry, Reading
from highwater.connectors.redis.link import RedisAwayError
from highwater.schemas.errors import UnavailableError

JOB = "11111111-1111-4111-8111-11111111111a"
NOW_MS = 1_790_000_000_000


def entry(seq: int, event_type: str = "slide_completed") -> Entry:
    """An entry of a stream."""
    return Entry(seq, {"event_type": event_type, "progress_pct": "46", "timestamp": "1700000000000"})


def job(seq: int, status: str = "running", updated_ms: int = 0) -> JobRead:
    """A job that has published N events."""
    return JobRead(
        JOB, "generation", "acme", "ada", "{}", status, seq, seq, 46, 7, 15, None, 0, Decimal(0), None, None, "t/0/1",
        "t/0/1", None, 0, updated_ms, None,
    )  # fmt: skip


class Streams:
    """Streams whose entries are the test's."""

    def __init__(self) -> None:
        self.entries: dict[str, list[Entry]] = {}
        self.reads: list[Sequence[tuple[str, int]]] = []
        self.is_up = True
        self.woken: asyncio.Queue[str | None] = asyncio.Queue()

    async def read(self, places: Sequence[tuple[str, int]]) -> list[Reading]:
        """Return the held entries."""
        self.reads.append(list(places))
        if not self.is_up:
            raise RedisAwayError
        found = []
        for job_id, after in places:
            held = self.entries.get(job_id, [])
            found.append(Reading([one for one in held if one.seq > after], bool(held)))
        return found

    async def wakes(self) -> Any:
        """Yield the wake-ups of the test."""
        while True:
            yield await self.woken.get()


class Jobs:
    """Jobs of PostgreSQL."""

    def __init__(self) -> None:
        self.found: dict[str, JobRead] = {}
        self.is_up = True
        self.asked = 0

    async def __call__(self, job_ids: Sequence[str]) -> Mapping[str, JobRead]:
        """Those that are there."""
        self.asked += 1
        if not self.is_up:
            raise UnavailableError
        return {one: self.found[one] for one in job_ids if one in self.found}


@pytest.fixture
def streams() -> Streams:
    """Nothing is held."""
    return Streams()


@pytest.fixture
def jobs() -> Jobs:
    """No job is there."""
    return Jobs()


@pytest.fixture
async def hub(streams: Streams, jobs: Jobs) -> Any:
    """A hub that looks only when it is woken."""
    made = JobHub(streams, jobs, lambda: NOW_MS, "here")  # type: ignore[arg-type]
    yield made
    await made.close()


async def published(frames: Any) -> list[str]:
    """The next frames of a listener: event types and numbers."""
    found = await asyncio.wait_for(anext(frames), 5)
    return [f"{json.loads(frame.text)['event_type']} {frame.seq}" for frame in found]


def test_a_frame_is_the_same_on_both_ways():
    """The data of an event is the message of a socket; a line break in a title cannot end it."""
    frame = entry_frame(Entry(7, {"event_type": "slide_started", "slide_title": "a\n\nb", "slide_number": "2"}))
    head, name, data = frame.sse.decode().rstrip("\n").split("\n")
    assert (head, name, data) == ("id: 7-0", "event: slide_started", f"data: {frame.text}")
    expected = {"id": "7-0", "event_type": "slide_started", "slide_title": "a\n\nb", "slide_number": 2}
    assert json.loads(frame.text) == expected


async def test_a_failed_job_that_goes_on_is_told_further(streams: Streams, jobs: Jobs, hub: JobHub):
    """Its error ends a listener only if nothing comes after it, which PostgreSQL knows before the stream does."""
    streams.entries[JOB] = [entry(1, "error")]
    jobs.found[JOB] = job(2, "pending")
    with hub.listening(JOB, 0) as listener:
        frames = listener.frames()
        assert await published(frames) == ["error 1"]
        streams.entries[JOB] += [entry(2, "job_restarted"), entry(3, "error")]
        jobs.found[JOB] = job(3, "failed")
        streams.woken.put_nowait(JOB)
        assert await published(frames) == ["job_restarted 2", "error 3"]
        with pytest.raises(StopAsyncIteration):
            await anext(frames)


def test_a_snapshot_ends_only_what_has_ended():
    """And only where nothing is held behind it."""
    assert [frame.ends for frame in gap_frames(1, 9, job(9, "completed"))] == [False, True]
    assert [frame.ends for frame in gap_frames(1, 5, job(9, "completed"))] == [False, False]
    assert [frame.ends for frame in gap_frames(1, 9, job(9))] == [False, False]


def test_a_window_covers_its_newest_entries():
    """A listener that is before them reads Redis; one at the end has nothing to read."""
    channel = Channel(JOB)
    assert channel.since(0) is None
    channel.add([entry(seq) for seq in range(1, 101)])
    first = 100 - WINDOW_MAX
    assert channel.since(first - 1) is None
    assert [frame.seq for frame in channel.since(first) or ()] == list(range(first + 1, 101))
    assert channel.since(100) == []
    assert channel.since(105) == []
    channel.add([entry(103)])
    assert channel.since(100) is None
    assert [frame.seq for frame in channel.since(102) or ()] == [103]


async def test_a_listener_goes_on_with_what_is_read_for_all(hub, streams):
    """From the window, with no read of its own."""
    streams.entries[JOB] = [entry(1), entry(2)]
    with hub.listening(JOB, 0) as first, hub.listening(JOB, 1) as second:
        one, two = first.frames(), second.frames()
        assert await published(one) == ["slide_completed 1", "slide_completed 2"]
        assert await published(two) == ["slide_completed 2"]
        reads = len(streams.reads)
        streams.entries[JOB].append(entry(3, "generation_done"))
        streams.woken.put_nowait(JOB)
        assert await published(one) == await published(two) == ["generation_done 3"]
        assert len(streams.reads) == reads + 1
        with pytest.raises(StopAsyncIteration):
            await anext(one)


async def test_a_wake_up_of_another_job_is_not_looked_at(hub, streams):
    """Nor is one that names no job of anybody here."""
    streams.entries[JOB] = [entry(1)]
    with hub.listening(JOB, 0) as listener:
        frames = listener.frames()
        await published(frames)
        reads = len(streams.reads)
        streams.woken.put_nowait("other")
        await asyncio.sleep(0.05)
        assert len(streams.reads) == reads
        streams.entries[JOB].append(entry(2))
        streams.woken.put_nowait(JOB)
        assert await published(frames) == ["slide_completed 2"]
        assert len(streams.reads) == reads + 1


async def test_holes_are_told_wherever_they_are(hub, streams, jobs):
    """Before the held entries and within them; PostgreSQL is read once for all listeners that find one."""
    streams.entries[JOB] = [entry(3), entry(4), entry(7)]
    jobs.found[JOB] = job(7)
    with hub.listening(JOB, 0) as first, hub.listening(JOB, 4) as second:
        expected = ["gap 2", "snapshot 2", "slide_completed 3", "slide_completed 4", "gap 6", "snapshot 6"]
        got, other = await asyncio.gather(published(first.frames()), published(second.frames()))
        assert got == [*expected, "slide_completed 7"]
        assert other == ["gap 6", "snapshot 6", "slide_completed 7"]


async def test_a_hole_waits_for_postgres(hub, streams, jobs):
    """Later events are held back; they are sent once PostgreSQL has recovered."""
    streams.entries[JOB] = [entry(2)]
    jobs.found[JOB], jobs.is_up = job(2), False
    with hub.listening(JOB, 0) as listener:
        frames = listener.frames()
        waiting = asyncio.ensure_future(published(frames))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        jobs.is_up = True
        streams.woken.put_nowait(None)
        assert await waiting == ["gap 1", "snapshot 1", "slide_completed 2"]


async def test_a_stream_that_is_gone_is_told_once(hub, streams, jobs):
    """The gap is sent when the last event is too old to be in transit; an ended job ends there."""
    jobs.found[JOB] = job(5, updated_ms=NOW_MS - 1_000)
    with hub.listening(JOB, 2) as listener:
        frames = listener.frames()
        waiting = asyncio.ensure_future(published(frames))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        jobs.found[JOB] = job(5, updated_ms=NOW_MS - 10_000)
        streams.woken.put_nowait(JOB)
        assert await waiting == ["gap 5", "snapshot 5"]
        waiting = asyncio.ensure_future(published(frames))
        streams.woken.put_nowait(JOB)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        jobs.found[JOB] = job(6, "completed", updated_ms=NOW_MS - 10_000)
        streams.woken.put_nowait(JOB)
        assert await waiting == ["gap 6", "snapshot 6"]
        with pytest.raises(StopAsyncIteration):
            await anext(frames)


async def test_redis_away_skips_nothing(hub, streams, monkeypatch):
    """A listener that could not read its past reads it once Redis is back."""
    monkeypatch.setattr("highwater.api.jobs.stream._AGAIN_SECONDS", 0.02)
    streams.entries[JOB] = [entry(seq) for seq in range(1, 100)]
    streams.is_up = False
    with hub.listening(JOB, 0) as listener:
        waiting = asyncio.ensure_future(published(listener.frames()))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        streams.is_up = True
        assert await waiting == [f"slide_completed {seq}" for seq in range(1, 100)]


async def test_nobody_listens_and_nothing_is_read(hub, streams):
    """With the last listener the reading ends, and begins again with the next."""
    streams.entries[JOB] = [entry(1)]
    for _ in range(2):
        with hub.listening(JOB, 0) as listener:
            assert await published(listener.frames()) == ["slide_completed 1"]
        assert (hub._channels, hub._tasks) == ({}, [])


# -- ids and whose jobs they are ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "place"), [(None, 0), ("", 0), ("0-0", 0), ("0", 0), (" 7-0 ", 7), ("9", 9)])
def test_ids_that_a_job_gave(text, place):
    """With and without the second part, which is always 0."""
    assert place_after(text, job(9)) == place


@pytest.mark.parametrize("text", ["10-0", "1-1", "-1", "1-0-0", "x", "٣-0", "9" * 30])
def test_ids_that_it_did_not(text):
    """Beyond the last, or no id."""
    with pytest.raises(BadRequestError):
        place_after(text, job(9))


def test_a_key_names_a_job_of_one_user():
    """No two triples that differ give one id."""
    ids = {job_id_of(*names) for names in (("a", "b", "c"), ("a,b", "", "c"), ("a", "b,c", ""), ("a", "b", "d"))}
    assert len(ids) == 4
    assert job_id_of("a", "b", "c") in ids
    assert job_id_of("a", "b", None) != job_id_of("a", "b", None)


def test_the_command_reads_events_and_nothing_else():
    """Comments, other fields and events without an id are passed over."""
    lines = [
        "retry: 1000",
        "",
        ": heartbeat",
        "",
        "id: 1-0",
        "event: gap",
        'data: {"a": 1}',
        "",
        "data: {}",
        "",
        "id: 2-0",
    ]
    assert [(one.id, one.document) for one in _parsed(iter(lines))] == [("1-0", {"a": 1})]
