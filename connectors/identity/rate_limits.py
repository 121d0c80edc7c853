"""Requests of API keys and users by the minute, counted over all processes in one round trip (R2.27, R2.30, R2.31).

Laws. Whoever asks gets the number that an INCR of its own would have given, so no two requests of a minute have one number. All
that is asked in one turn of the event loop travels together, and a key named by several of them is counted by one command.
Nothing is remembered here: a Redis that lost its counters begins the minute anew.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from highwater.connectors.redis.keys import KEY_REQUESTS, PLAN_LIMITS, USER, USER_REQUESTS, key
from highwater.connectors.redis.link import RedisAwayError, RedisLink
from highwater.streams.identity.rate_limits import COUNTER_SECONDS, minute_of

# As those of `ResourceCache`: more in one pipeline would delay the first of them.
BATCH_MAX = 256


class Whose(NamedTuple):
    """Who is counted: an API key by its id, a user, or both. And what is read with it: an organization's limit, a user's plan."""

    key_id: str | None = None
    user_id: str | None = None
    organization_id: str | None = None
    plan_of_user: str | None = None


class Counted(NamedTuple):
    """The number of a request in its minute, by key and by user; None for what is not counted.

    `limit`: what the copy of an organization's limits allows a minute; `plan`: the user's as the mirror has it. None: not known.
    """

    of_key: int | None = None
    of_user: int | None = None
    limit: int | None = None
    plan: str | None = None


class _Asked(NamedTuple):
    of_key: str | None
    of_user: str | None
    limit_at: tuple[str, str] | None
    plan_at: tuple[str, str] | None
    future: asyncio.Future[Counted]

    @property
    def counters(self) -> tuple[str, ...]:
        return tuple(name for name in (self.of_key, self.of_user) if name is not None)

    @property
    def reads(self) -> tuple[tuple[str, str], ...]:
        return tuple(place for place in (self.limit_at, self.plan_at) if place is not None)


class RateLimits:
    """Counts requests, over all processes that share a Redis."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._waiting: list[_Asked] = []
        self._flushes: set[asyncio.Task[None]] = set()

    async def count(self, whose: Whose, now_ms: int) -> Counted:
        """Count a request in the minute of `now_ms`.

        Raises:
            RedisAwayError: nobody can tell over all processes.
        """
        self._link.require()
        loop = asyncio.get_running_loop()
        asked = _Asked(*_names(whose, minute_of(now_ms)), loop.create_future())
        self._waiting.append(asked)
        if len(self._waiting) == 1:
            loop.call_soon(self._start_flush)
        elif len(self._waiting) >= BATCH_MAX:
            self._start_flush()
        return await asked.future

    def _start_flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            task = asyncio.create_task(self._flush(waiting), name="rate-limits")
            self._flushes.add(task)
            task.add_done_callback(self._flushes.discard)

    async def _flush(self, waiting: Sequence[_Asked]) -> None:
        times = Counter(name for asked in waiting for name in asked.counters)
        reads = list(dict.fromkeys(place for asked in waiting for place in asked.reads))
        commands: list[tuple[str | int, ...]] = []
        for name, number in times.items():
            commands += [("INCRBY", name, number), ("EXPIRE", name, COUNTER_SECONDS)]
        commands += [("HGET", *place) for place in reads]
        try:
            replies = await self._link.run(_replies(self._link.client.connection_pool, commands))
        except RedisAwayError as error:
            for asked in waiting:
                if not asked.future.done():  # the client may have gone away meanwhile
                    asked.future.set_exception(error)
            return
        numbers = 2 * len(times)
        lasts = dict(zip(times, replies[0:numbers:2], strict=True))
        _tell(waiting, times, lasts, dict(zip(reads, replies[numbers:], strict=True)))


async def _replies(pool: Any, commands: Sequence[tuple[str | int, ...]]) -> list[Any]:
    """What Redis answers, in one round trip; a command that it refuses is answered with its error.

    As the client's own pipeline does it, without what that does beside: a decision alone takes half as long. The connection
    closes itself when an answer is not waited for to its end.
    """
    connection = await pool.get_connection()
    try:
        await connection.send_packed_command(connection.pack_commands(commands))
        return [await _reply(connection) for _ in commands]
    finally:
        await pool.release(connection)


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _names(whose: Whose, minute: str) -> tuple[str | None, str | None, tuple[str, str] | None, tuple[str, str] | None]:
    """The counters, and the fields that are read with them."""
    key_id, user_id, organization_id, plan_of_user = whose
    return (
        None if key_id is None else key(KEY_REQUESTS, api_key_id=key_id, minute=minute),
        None if user_id is None else key(USER_REQUESTS, user_id=user_id, minute=minute),
        None if organization_id is None else (key(PLAN_LIMITS, organization_id=organization_id), "requests_per_minute"),
        None if plan_of_user is None else (key(USER, user_id=plan_of_user), "plan"),
    )


def _tell(
    waiting: Sequence[_Asked],
    times: Mapping[str, int],
    lasts: Mapping[str, Any],
    read: Mapping[tuple[str, str], Any],
) -> None:
    """Give each its number: those who came first have the lower ones."""
    told: Counter[str] = Counter()
    for asked in waiting:
        numbers: dict[str, int] = {}
        refused: Exception | None = None
        for name in asked.counters:
            told[name] += 1
            last = lasts[name]
            if isinstance(last, Exception):  # a key of another type, or no memory left
                refused = last
            else:
                numbers[name] = last - times[name] + told[name]
        if asked.future.done():
            continue
        if refused is not None:
            asked.future.set_exception(RedisAwayError(f"Redis refuses to count: {refused}"))
            continue
        limit, plan = _text(read, asked.limit_at), _text(read, asked.plan_at)
        of_key, of_user = (None if name is None else numbers[name] for name in (asked.of_key, asked.of_user))
        is_number = limit is not None and limit.isascii() and limit.isdigit()
        asked.future.set_result(Counted(of_key, of_user, int(limit or 0) if is_number else None, plan))


def _text(read: Mapping[tuple[str, str], Any], place: tuple[str, str] | None) -> str | None:
    found = None if place is None else read[place]
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else None
