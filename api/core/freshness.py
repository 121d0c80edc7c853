"""Read your writes: a read that names positions waits until the sinks have accounted for them.

Accounted for means stored, found unchanged or dead-lettered: the sink's `positions.next` is past the offset. One
watcher per process queries PostgreSQL, and only while a request waits. A condition that can never become true (a topic
that does not feed the endpoint, a position past the end of the log) is refused at once instead of timing out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from highwater.api.core.conditional import CACHE_NEVER
from highwater.api.core.errors import BadRequestError
from highwater.api.core.log_state import LogState
from highwater.connectors.kafka.admin import Admin
from highwater.schemas.errors import HighwaterError, InvalidEventError, UnavailableError
from highwater.schemas.feeds import REBUILD_REQUESTED
from highwater.schemas.positions import highest_positions
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import monotonic_seconds

POLL_SECONDS = 0.02
WAIT_MS_DEFAULT = 2_000
# A client that wants to wait longer repeats the request: an open request holds memory and a connection.
WAIT_MS_MAX = 30_000
# How long a write waits for its own sink before it answers (contract).
WRITE_WAIT_MS = 100
# One position for each partition of every topic is far below it; more is a mistake.
POSITIONS_MAX = 1_000

POSITIONED = b"x-min-position"
_CACHE_FIELDS = (b"cache-control", b"cdn-cache-control")

Wanted = Mapping[tuple[str, str, int], int]  # (group, topic, partition) -> offset
ReadPositions = Callable[[Sequence[tuple[str, str, int]]], Awaitable[Mapping[tuple[str, str, int], int]]]

# Each set holds the topics that the `X-Caused-By` of its endpoints may name: a client may ask another process for data
# no older than its copy.
FEEDS_TOPICS = frozenset(name for name, topic in TOPICS.items() if topic.outsider and name.startswith("feeds.")) | {
    REBUILD_REQUESTED
}
INSIGHT_TOPICS = frozenset({"feeds.insight-ingested", "feeds.insight-retracted"})
SUBSCRIPTION_TOPICS = frozenset({"feeds.subscription-changed", "feeds.subscriptions-replaced", "feeds.user-erased"})


class KeepPositionedFromCaches:
    """ASGI: prevents caches from storing the answer to a read with `X-Min-Position`.

    Caches do not know positions: they would serve the stored answer to a later read that requires more, or to a plain
    read.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add `no-store` to its answer if it names positions."""
        if scope["type"] != "http" or all(name != POSITIONED for name, _ in scope["headers"]):
            await self._app(scope, receive, send)
            return

        async def never_stored(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0].lower() not in _CACHE_FIELDS]
                message = {**message, "headers": [*kept, (b"cache-control", CACHE_NEVER.encode())]}
            await send(message)

        await self._app(scope, receive, never_stored)


class BeyondEndError(BadRequestError):
    """A position is past the end of the log. Send one that a response contained."""


class NotYetError(UnavailableError):
    """The named positions are not processed yet. Try again; if this continues, see `highwater lag`."""


def group_of(topic: str) -> str:
    """Return the sink that accounts for a topic."""
    return TOPICS[topic].consumers[0]


class PositionWatcher:
    """Waits for positions on behalf of all requests of the process."""

    def __init__(self, read_positions: ReadPositions) -> None:
        self._read = read_positions
        self._waiting: dict[asyncio.Future[None], Wanted] = {}
        self._task: asyncio.Task[None] | None = None

    async def wait(self, wanted: Wanted, wait_ms: int) -> bool:
        """Return whether all positions were accounted for within the time.

        Raises:
            UnavailableError: PostgreSQL is unavailable.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = wanted
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch(), name="position-watcher")
        try:
            await asyncio.wait_for(future, wait_ms / 1000)
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(future, None)
        return True

    async def _watch(self) -> None:
        while self._waiting:
            asked = sorted({place for wanted in self._waiting.values() for place in wanted})
            try:
                seen = await self._read(asked)
            except HighwaterError as error:
                for future in list(self._waiting):
                    if not future.done():
                        future.set_exception(error)
                return
            for future, wanted in list(self._waiting.items()):
                if not future.done() and is_accounted_for(wanted, seen):
                    future.set_result(None)
            await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def is_accounted_for(wanted: Wanted, seen: Mapping[tuple[str, str, int], int]) -> bool:
    """Return whether each wanted offset is below the next offset of its group."""
    return all(seen.get(place, 0) > offset for place, offset in wanted.items())


def min_positions(request: Request, fed_by: Iterable[str]) -> dict[tuple[str, int], int]:
    """Return the positions in `X-Min-Position`, empty without the header.

    Raises:
        BadRequestError: one is malformed, or of a topic that does not feed this endpoint.
    """
    text = ",".join(request.headers.getlist("x-min-position"))
    if not text.strip():
        return {}
    try:
        positions = highest_positions(text)
    except InvalidEventError as error:
        raise BadRequestError(f"X-Min-Position: {error}") from error
    if len(positions) > POSITIONS_MAX:
        raise BadRequestError(f"X-Min-Position names more than {POSITIONS_MAX} partitions")
    allowed = frozenset(fed_by)
    for topic, partition in positions:
        if topic not in allowed:
            raise BadRequestError(f"X-Min-Position: {topic} does not feed this endpoint")
        if partition >= TOPICS[topic].partitions:
            raise BadRequestError(f"X-Min-Position: {topic} has no partition {partition}")
    return positions


def max_wait_ms(request: Request) -> int:
    """The value of `X-Max-Wait-Ms`.

    Raises:
        BadRequestError: it is not a number of milliseconds.
    """
    text = request.headers.get("x-max-wait-ms")
    if text is None:
        return WAIT_MS_DEFAULT
    if not text.isascii() or not text.isdigit():
        raise BadRequestError("X-Max-Wait-Ms is not a number of milliseconds")
    return min(int(text[:9]), WAIT_MS_MAX)


def wanted_of(positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, str, int], int]:
    """Return the same positions with the group that accounts for each."""
    return {(group_of(topic), topic, partition): offset for (topic, partition), offset in positions.items()}


async def _refuse_beyond_end(admin: Admin, positions: Mapping[tuple[str, int], int]) -> None:
    ranges = await admin.log_ranges(positions)
    for (topic, partition), offset in positions.items():
        if offset >= ranges[topic, partition].high:
            raise BeyondEndError(f"X-Min-Position: {topic}/{partition}/{offset} is past the end of the log")


async def wait_until_fresh(
    request: Request,
    *,
    fed_by: Iterable[str],
    watcher: PositionWatcher,
    read_positions: ReadPositions,
    admin: Callable[[], Admin],
    log_state: LogState,
) -> bool:
    """Wait for the positions that the request names; return False if it names none.

    Raises:
        LostPositionError, LogTruncatedError: the log lost the record of one.
        BadRequestError: the request names a position that cannot be reached.
        NotYetError: the position was not accounted for in time.
        UnavailableError: a service that is needed for the check is unavailable.
    """
    positions = min_positions(request, fed_by)
    wait_ms = max_wait_ms(request)
    if not positions:
        return False
    await wait_for(positions, wait_ms, watcher=watcher, read_positions=read_positions, admin=admin, log_state=log_state)
    return True


async def wait_for(
    positions: Mapping[tuple[str, int], int],
    wait_ms: int,
    *,
    watcher: PositionWatcher,
    read_positions: ReadPositions,
    admin: Callable[[], Admin],
    log_state: LogState,
) -> None:
    """Wait until positions are accounted for.

    Raises:
        LostPositionError, LogTruncatedError: the log lost the record of one.
        BeyondEndError: one is past the end of the log.
        NotYetError: one was not accounted for in time.
        UnavailableError: a service that is needed for the check is unavailable.
    """
    wanted = wanted_of(positions)
    started = monotonic_seconds()
    await log_state.refuse_reads(positions)
    seen = await read_positions(sorted(wanted))
    if is_accounted_for(wanted, seen):
        return
    missing = {
        (topic, partition): offset
        for (group, topic, partition), offset in wanted.items()
        if seen.get((group, topic, partition), 0) <= offset
    }
    await _refuse_beyond_end(admin(), missing)
    left_ms = wait_ms - int((monotonic_seconds() - started) * 1000)
    if left_ms <= 0 or not await watcher.wait(wanted, left_ms):
        raise NotYetError
