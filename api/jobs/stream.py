"""The reports of jobs for watchers, from the streams in Redis: one reader per process, and listeners with a place in a
stream.

Invariants. A listener gets everything after its place once and in order, or is notified that something is missing
(`gap`), with the state of the job (R2.21). Entries wait in Redis for a listener: a slow one blocks no other and takes
no memory. Pub/sub only wakes (R2.22), and a periodic check makes up for a lost wake-up. While Redis is unavailable
listeners stay connected and nothing is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import StreamingResponse  # noqa: TID251 - it sends by itself, and ends what it sends
from starlette.types import Receive, Scope, Send

from highwater.api.core.audience import Audience, fail
from highwater.api.core.auth import Principal
from highwater.api.core.streamed import until_gone
from highwater.api.jobs.frames import Frame, entry_frame, gap_frames
from highwater.connectors.jobs.read_model import JobRead
from highwater.connectors.jobs.streams import Entry, JobStreams, Reading
from highwater.connectors.postgres.shared_reads import SharedReads
from highwater.connectors.redis.link import RedisAwayError
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import Clock
from highwater.streams.telemetry import JOB_LISTENERS, get_log

# Listeners of one process: twice the thousand that `bench progress` measures; each holds some 40 KiB, most of it the
# server's.
LISTENERS_MAX = 2_000
# The newest entries of each watched job, as they are sent: those of a burst between two turns of its listeners. A
# listener that is further behind reads Redis itself. Of 2,000 different jobs at once they are some 30 MB.
WINDOW_MAX = 32
HEARTBEAT_SECONDS = 15.0
# The maximum delay of an event whose wake-up was lost.
LOOK_SECONDS = 3.0
# From the commit of a step to its entry it takes some 20 ms. An entry missing after this long will not appear.
LOST_MS = 3_000
# Sockets count as lost after 300 s (R2.23): four beats may fail.
BEAT_SECONDS = 60.0
# A session may be ended while its stream is open; a key may not. Checked as often as that of a socket.
RECHECK_BEATS = 4
# Calls of listeners that come and go at once: each holds a connection to Redis, of which the process's client has 100.
CALLS_MAX = 8

# Delay before Redis is queried again after the wake-ups or a read failed.
_AGAIN_SECONDS = 0.5
_log = get_log("job-streams")


class Channel:
    """A watched job: the newest entries of its stream, and its listeners."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.listeners: set[Listener] = set()
        self.head = -1  # the last number read; -1: nothing was read yet
        self.turn = 0  # counts reads, so that a listener notices one that happened during its own
        self.is_owed = False  # a listener could not read the entries before the window
        self.lost: JobRead | None = None  # the state of the job if its stream is gone
        self._window: deque[Frame] = deque(maxlen=WINDOW_MAX)

    def add(self, entries: Sequence[Entry]) -> None:
        """Add the entries after `head`."""
        if entries and entries[0].seq != self.head + 1:
            self._window.clear()  # it contains no gap: a listener before one reads Redis, and finds it
        self._window.extend(entry_frame(entry) for entry in entries[-WINDOW_MAX:])
        self.head = entries[-1].seq if entries else max(self.head, 0)
        self.turn += 1

    def since(self, place: int) -> list[Frame] | None:
        """Return the entries after a place; None if they are not in memory."""
        if self.head < 0:
            return None
        if place >= self.head:
            return []
        if not self._window or self._window[0].seq > place + 1:
            return None
        return [frame for frame in self._window if frame.seq > place]

    def wake(self, *, is_beat: bool = False) -> None:
        """Wake every listener; at a beat it sends a heartbeat."""
        for listener in self.listeners:
            listener.wake(is_beat=is_beat)


class Listener:
    """One watcher of a job."""

    def __init__(self, hub: JobHub, channel: Channel, place: int) -> None:
        self._hub = hub
        self.channel = channel
        self.place = place
        self.closed: tuple[int, str] | None = None
        self.is_ended = False
        self._is_beat = False
        self._waiting: asyncio.Future[None] | None = None

    def wake(self, *, is_beat: bool = False) -> None:
        """Wake the listener: there may be new entries."""
        self._is_beat = self._is_beat or is_beat
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def end(self) -> None:
        """End the listener: the other side has gone."""
        self.is_ended = True
        self.wake()

    def close(self, code: int, reason: str) -> None:
        """End the listener, and close its socket with this code; the first call counts."""
        self.closed = self.closed or (code, reason)
        self.end()

    async def frames(self) -> AsyncGenerator[Sequence[Frame], None]:
        """Yield the frames, in order; an empty list is a heartbeat. It ends with the job, the watcher or the server."""
        while not (self.is_ended or self._hub.audience.is_ending):
            found = self.channel.since(self.place)
            turn = self.channel.turn
            if found is None:
                found = await self._hub.read_past(self)
            told = await self._without_holes(found)
            if told:
                self.place = told[-1].seq
                yield told
                if told[-1].ends and not await self._goes_on(told[-1]):
                    return
                continue
            if self._is_beat:
                self._is_beat = False
                yield ()
            elif turn == self.channel.turn:
                await self._woken()

    async def _goes_on(self, frame: Frame) -> bool:
        """Return whether more follows a job's end: it failed, and was restarted since."""
        job = await self._hub.job_of(self.channel) if frame.may_go_on else None
        return job is not None and (not job.has_ended or job.seq > frame.seq)

    async def _woken(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            if not (self.is_ended or self._hub.audience.is_ending):
                await self._waiting
        finally:
            self._waiting = None

    async def _without_holes(self, found: Sequence[Frame]) -> list[Frame]:
        """Return the frames, with a gap reported at missing numbers; none while the state of the job is unknown."""
        told: list[Frame] = []
        place = self.place
        for frame in found:
            if frame.seq != place + 1:
                job = await self._hub.job_of(self.channel)
                if job is None:
                    self.channel.is_owed = True
                    return told
                told += [gap._replace(ends=False) for gap in gap_frames(place, frame.seq - 1, job)]
            told.append(frame)
            place = frame.seq
        lost = self.channel.lost
        if not told and lost is not None and lost.seq > place:
            told = gap_frames(place, lost.seq, lost)
        return told


def _take(channel: Channel, reading: Reading) -> None:
    """Pass the entries read of a job to its listeners."""
    if reading.is_there:
        channel.lost = None
    if reading.entries or channel.head < 0:
        channel.add(reading.entries)
    elif not channel.is_owed:
        return
    channel.is_owed = False
    channel.wake()


class JobHub:
    """Reads the streams of all watched jobs for every listener of the process."""

    def __init__(
        self,
        streams: JobStreams,
        read_jobs: Callable[[Sequence[str]], Awaitable[Mapping[str, JobRead]]],
        clock: Clock,
        server_id: str,
    ) -> None:
        """`read_jobs` reads PostgreSQL, for all jobs at once whose stream lacks something."""
        self._streams = streams
        self._read_jobs = read_jobs
        self._clock = clock
        self._server_id = server_id
        self._channels: dict[str, Channel] = {}
        self._dirty: set[str] = set()
        self._has_dirty = asyncio.Event()
        self._sockets: dict[str, set[str]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving: set[asyncio.Task[None]] = set()
        # Listeners that reconnect at one place share one read; all that reconnect after a restart take turns at a few
        # connections.
        self._past: SharedReads[list[Frame]] = SharedReads()
        self._room = asyncio.Semaphore(CALLS_MAX)
        self._asking: dict[str, asyncio.Task[JobRead | None]] = {}
        self.audience = Audience("clients watch jobs on this process", LISTENERS_MAX, JOB_LISTENERS)

    # -- listeners that come and go -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def listening(self, job_id: str, after: int) -> Iterator[Listener]:
        """Yield a listener of a job, for everything after a number; 0: from the beginning."""
        channel = self._channels.get(job_id)
        if channel is None:
            channel = self._channels[job_id] = Channel(job_id)
            self._look_at(job_id)
        listener = Listener(self, channel, after)
        channel.listeners.add(listener)
        if not self._tasks:
            works = (self._hear, self._read, self._look, self._beat)
            self._tasks = [asyncio.create_task(self._working(work), name="job-streams") for work in works]
        try:
            yield listener
        finally:
            listener.is_ended = True
            channel.listeners.discard(listener)
            if not channel.listeners:
                del self._channels[job_id]
                self._dirty.discard(job_id)
            if not self._channels:
                self._stop()

    @contextlib.asynccontextmanager
    async def socket(self, user_id: str, connection_id: str) -> AsyncIterator[None]:
        """Register that this process holds a socket on a user's jobs (R2.23)."""
        member = f"{self._server_id}:{connection_id}"
        self._sockets.setdefault(user_id, set()).add(member)
        try:
            with contextlib.suppress(RedisAwayError):  # the next beat publishes it
                async with self._room:
                    await self._streams.beat({user_id: [member]}, self._clock())
            yield
        finally:
            self._sockets[user_id].discard(member)
            if not self._sockets[user_id]:
                del self._sockets[user_id]
            with contextlib.suppress(RedisAwayError):  # its beats have stopped
                async with self._room:
                    await self._streams.gone(user_id, member)

    async def end(self) -> None:
        """End every stream, and wait a moment until the clients are notified."""
        await self.audience.end(self._listeners())

    async def close(self) -> None:
        """Stop reading."""
        self.audience.is_ending = True
        self._stop()
        tasks: list[asyncio.Task[Any]] = [*self._leaving, *self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        self._tasks = []

    # -- reading ------------------------------------------------------------------------------------------------------

    async def read_past(self, listener: Listener) -> list[Frame]:
        """Return the entries after a listener that is behind the ones in memory; nothing while Redis is unavailable."""
        job_id, place = listener.channel.job_id, listener.place
        try:
            return await self._past.read(f"{job_id}/{place}", lambda: self._read_from(job_id, place))
        except RedisAwayError:
            listener.channel.is_owed = True
            return []

    async def _read_from(self, job_id: str, place: int) -> list[Frame]:
        async with self._room:
            (reading,) = await self._streams.read([(job_id, place)])
        return [entry_frame(entry) for entry in reading.entries]

    async def job_of(self, channel: Channel) -> JobRead | None:
        """Return the state of a job, read once for all concurrent callers; None while PostgreSQL is unavailable."""
        task = self._asking.get(channel.job_id)
        if task is None:
            task = self._asking[channel.job_id] = asyncio.create_task(self._asked(channel.job_id))
            task.add_done_callback(lambda _: self._asking.pop(channel.job_id, None))
        return await asyncio.shield(task)

    async def _asked(self, job_id: str) -> JobRead | None:
        try:
            return (await self._read_jobs([job_id])).get(job_id)
        except UnavailableError:
            return None

    def _listeners(self) -> Iterator[Listener]:
        return (listener for channel in self._channels.values() for listener in channel.listeners)

    def _look_at(self, job_id: str) -> None:
        self._dirty.add(job_id)
        self._has_dirty.set()

    def _look_at_all(self) -> None:
        self._dirty.update(self._channels)
        self._has_dirty.set()

    async def _working(self, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat a task when a service is unavailable; after any other error, end the listeners that would receive
        nothing more.
        """
        while True:
            try:
                await work()
            except UnavailableError:
                await asyncio.sleep(_AGAIN_SECONDS)
            except Exception as error:  # noqa: BLE001 - logged, and ended for all: clients reconnect with their last id
                _log.error("watching jobs failed", error=repr(error), exc_info=True)
                fail(self._listeners())
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _hear(self) -> None:
        """Note which jobs have new entries."""
        async with contextlib.aclosing(self._streams.wakes()) as wakes:
            async for job_id in wakes:
                if job_id is None:
                    self._look_at_all()
                elif job_id in self._channels:
                    self._look_at(job_id)

    async def _look(self) -> None:
        """Check everything periodically: a wake-up may have been lost, and a stream too."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look_at_all()

    async def _read(self) -> None:
        """Read the new entries of the jobs that have some, all in one round trip; meanwhile the next ones gather."""
        while True:
            await self._has_dirty.wait()
            channels = [self._channels[job_id] for job_id in self._dirty if job_id in self._channels]
            self._dirty.clear()
            self._has_dirty.clear()
            try:
                readings = await self._streams.read([(channel.job_id, max(channel.head, 0)) for channel in channels])
                gone = [channel for channel, reading in zip(channels, readings, strict=True) if not reading.is_there]
                for channel, reading in zip(channels, readings, strict=True):
                    _take(channel, reading)
                await self._find_lost(gone)
            except UnavailableError:
                self._look_at_all()
                raise

    async def _find_lost(self, channels: Sequence[Channel]) -> None:
        """Check in PostgreSQL whether jobs without a stream have reported something that will no longer arrive."""
        if not channels:
            return
        jobs = await self._read_jobs([channel.job_id for channel in channels])
        now_ms = self._clock()
        for channel in channels:
            job = jobs.get(channel.job_id)
            channel.lost = job if job is not None and abs(now_ms - job.updated_ms) >= LOST_MS else None
            if channel.lost is not None:
                channel.wake()

    async def _beat(self) -> None:
        """Let listeners send heartbeats, and report the sockets to Redis."""
        beats = 0
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            for channel in self._channels.values():
                channel.wake(is_beat=True)
            beats += 1
            if beats * HEARTBEAT_SECONDS >= BEAT_SECONDS:
                beats = 0
                with contextlib.suppress(RedisAwayError):
                    await self._streams.beat(
                        {user: sorted(names) for user, names in self._sockets.items()}, self._clock()
                    )


class EventStream(StreamingResponse):
    """A job's events as server-sent events; it ends with the job."""

    def __init__(
        self,
        hub: JobHub,
        job_id: str,
        after: int,
        principal: Principal,
        is_still_allowed: Callable[[], Awaitable[bool]],
    ) -> None:
        """`is_still_allowed` is called periodically to check whether the listener still has access."""
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__((), headers=headers, media_type="text/event-stream")
        self._hub = hub
        self._job_id = job_id
        self._after = after
        self._principal = principal
        self._is_still_allowed = is_still_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the job, the client or the server ends."""
        audience = self._hub.audience
        with (
            audience.admitted(),
            audience.places.taken(self._principal),
            self._hub.listening(self._job_id, self._after) as listener,
        ):
            # One small task per listener that waits for its client to leave, instead of the library's group of two.
            going = asyncio.create_task(until_gone(receive), name="job-events")
            going.add_done_callback(lambda _: listener.end())
            try:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await self._tell(listener, send)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                going.cancel()
                await asyncio.gather(going, return_exceptions=True)

    async def _tell(self, listener: Listener, send: Send) -> None:
        beats = 0
        await send({"type": "http.response.body", "body": b"retry: 1000\n\n", "more_body": True})
        async with contextlib.aclosing(listener.frames()) as told:
            async for frames in told:
                body = b"".join([frame.sse for frame in frames]) if frames else b": heartbeat\n\n"
                await send({"type": "http.response.body", "body": body, "more_body": True})
                beats += not frames
                if not frames and beats % RECHECK_BEATS == 0 and not await self._is_still_allowed():
                    return
