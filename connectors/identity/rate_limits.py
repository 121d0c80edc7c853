"""Counts calls over all processes that share a Redis: of keys and users by the minute (R2.27, R2.30, R2.31), of
addresses in a sliding window (R4.36). Each is one round trip.

Invariants. Each call gets the number that its own INCR would have returned, so no two requests of a minute have the
same number. All calls in one turn of the event loop are sent together, and a key named by several of them is counted by
one command. Nothing is stored here: a Redis that lost its counters starts the minute again. No window admits more calls
of an address than the limit, by the rule of `streams/identity/rate_limits.py`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from highwater.connectors.redis.keys import (
    CALLER_REQUESTS,
    KEY_REQUESTS,
    LIVE_REQUESTS,
    PLAN_LIMITS,
    USER,
    USER_REQUESTS,
    key,
)
from highwater.connectors.redis.link import RedisAwayError, RedisLink
from highwater.connectors.redis.questions import Questions
from highwater.streams.identity.rate_limits import COUNTER_SECONDS, LIVE_WINDOW_MS, minute_of

# As those of `ResourceCache`: more in one pipeline would delay the first ones.
BATCH_MAX = 256

# KEYS[1] the times, newest first; ARGV now, most, window, calls. Returns how many of the calls at `now` are admitted,
# and after how many ms a refused one may be repeated. The list is at most as long as the limit, so the entry that a
# call would push out shows whether there is room. Times after now (another process is a millisecond ahead, or a clock
# was set back) are rewritten as now, as `admit` does, a hundred at a time: usually there are few. The key expires a
# window after its last request.
_ADMIT = """
local now, most, window, calls = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local newest = redis.call('LINDEX', KEYS[1], 0)
if newest and tonumber(newest) > now then
    local place, later = 0, 0
    repeat
        later = 0
        for _, at in ipairs(redis.call('LRANGE', KEYS[1], place, place + 99)) do
            if tonumber(at) <= now then break end
            redis.call('LSET', KEYS[1], place + later, ARGV[1])
            later = later + 1
        end
        place = place + later
    until later < 100
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
local admitted = {}
while #admitted < calls and #admitted < most do
    local oldest = redis.call('LINDEX', KEYS[1], most - 1 - #admitted)
    if oldest and tonumber(oldest) > now - window then break end
    admitted[#admitted + 1] = ARGV[1]
end
if #admitted > 0 then
    redis.call('LPUSH', KEYS[1], unpack(admitted))
    redis.call('LTRIM', KEYS[1], 0, most - 1)
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
if #admitted == calls then return {calls, 0} end
return {#admitted, tonumber(redis.call('LINDEX', KEYS[1], most - 1)) + window - now}
"""


class RateSubject(NamedTuple):
    """The counted subject: an API key by its id, a user, or both; and what is read with it: an organization's limit, a
    user's plan.

    `by_plan` False: counted separately from the requests of the plan.
    """

    key_id: str | None = None
    user_id: str | None = None
    organization_id: str | None = None
    plan_of_user: str | None = None
    by_plan: bool = True


class Counted(NamedTuple):
    """The number of a request in its minute, by key and by user; None for what is not counted. For one that costs more,
    the last number.

    `limit`: the calls per minute in the copy of an organization's limits; `plan`: the user's plan in the mirror. None:
    unknown.
    """

    of_key: int | None = None
    of_user: int | None = None
    limit: int | None = None
    plan: str | None = None


class _Counted(NamedTuple):
    of_key: str | None
    of_user: str | None
    limit_at: tuple[str, str] | None
    plan_at: tuple[str, str] | None
    future: asyncio.Future[Counted]
    cost: int = 1

    @property
    def counters(self) -> tuple[str, ...]:
        return tuple(name for name in (self.of_key, self.of_user) if name is not None)

    @property
    def reads(self) -> tuple[tuple[str, str], ...]:
        return tuple(place for place in (self.limit_at, self.plan_at) if place is not None)


class CallCounts:
    """Counts calls over all processes that share a Redis; calls of addresses use the clocks of the processes."""

    def __init__(self, link: RedisLink, calls_max: int, window_ms: int = LIVE_WINDOW_MS) -> None:
        """`calls_max`: calls of an address per window."""
        self._link = link
        self._calls_max = calls_max
        self._window_ms = window_ms
        self._script = link.script(_ADMIT)
        self._waiting: list[_Counted] = []
        self._addresses: dict[tuple[str, int], list[asyncio.Future[int]]] = {}  # by address and time
        self._questions = Questions(self._take, "call-counts")

    async def count(self, subject: RateSubject, now_ms: int, cost: int = 1) -> Counted:
        """Count a request in the minute of `now_ms`, as `cost` calls.

        Raises:
            RedisAwayError: Redis is unavailable, so there is no count over all processes.
        """
        self._link.require()
        future: asyncio.Future[Counted] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Counted(*_names(subject, minute_of(now_ms)), future, cost))
        self._questions.wait(is_full=len(self._waiting) >= BATCH_MAX)
        return await future

    async def retry_after_ms(self, address: str, now_ms: int) -> int:
        """Return 0 if the call is admitted and counted; else after how many ms it may be repeated.

        Raises:
            RedisAwayError: Redis is unavailable, so there is no count over all processes.
        """
        return await self.ask(address, now_ms)

    def ask(self, address: str, now_ms: int) -> asyncio.Future[int]:
        """Return a future of `retry_after_ms`, for a caller that does not wait; it also carries the errors."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if not self._link.is_up:
            future.set_exception(RedisAwayError(f"Redis is unavailable: {self._link.reason}"))
            return future
        asked = self._addresses.setdefault((address, now_ms), [])
        asked.append(future)
        self._questions.wait(is_full=len(self._addresses) >= BATCH_MAX or len(asked) >= BATCH_MAX)
        return future

    def _take(self) -> Coroutine[Any, Any, None] | None:
        waiting, self._waiting = self._waiting, []
        addresses, self._addresses = self._addresses, {}
        if waiting and addresses:
            return self._both(waiting, addresses)
        if waiting:
            return self._flush(waiting)
        return self._flush_addresses(addresses) if addresses else None

    async def _both(
        self, waiting: Sequence[_Counted], addresses: Mapping[tuple[str, int], Sequence[asyncio.Future[int]]]
    ) -> None:
        await asyncio.gather(self._flush(waiting), self._flush_addresses(addresses))

    async def _flush(self, waiting: Sequence[_Counted]) -> None:
        times: Counter[str] = Counter()
        for asked in waiting:
            times.update(dict.fromkeys(asked.counters, asked.cost))
        reads = list(dict.fromkeys(place for asked in waiting for place in asked.reads))
        commands: list[tuple[str | int, ...]] = []
        for name, number in times.items():
            commands += [("INCRBY", name, number), ("EXPIRE", name, COUNTER_SECONDS)]
        commands += [("HGET", *place) for place in reads]
        try:
            replies = await self._link.replies(commands)
        except RedisAwayError as error:
            for asked in waiting:
                if not asked.future.done():  # the client may have disconnected meanwhile
                    asked.future.set_exception(error)
            return
        numbers = 2 * len(times)
        lasts = dict(zip(times, replies[0:numbers:2], strict=True))
        _tell(waiting, times, lasts, dict(zip(reads, replies[numbers:], strict=True)))

    async def _flush_addresses(self, waiting: Mapping[tuple[str, int], Sequence[asyncio.Future[int]]]) -> None:
        calls = [
            ((key(LIVE_REQUESTS, address=address),), (now_ms, self._calls_max, self._window_ms, len(futures)))
            for (address, now_ms), futures in waiting.items()
        ]
        try:
            replies = await self._link.scripted(self._script, calls)
        except RedisAwayError as error:
            replies = [error] * len(calls)
        for futures, reply in zip(waiting.values(), replies, strict=True):
            for number, future in enumerate(futures):
                if future.done():  # the client may have disconnected meanwhile
                    continue
                if isinstance(reply, RedisAwayError):
                    future.set_exception(reply)
                elif isinstance(reply, Exception):
                    future.set_exception(RedisAwayError(f"Redis refuses to count: {reply}"))
                else:
                    future.set_result(0 if number < reply[0] else int(reply[1]))


def _names(
    subject: RateSubject, minute: str
) -> tuple[str | None, str | None, tuple[str, str] | None, tuple[str, str] | None]:
    """Return the counters, and the fields that are read with them."""
    key_id, user_id, organization_id, plan_of_user, by_plan = subject
    if not by_plan:
        callers = (("key", key_id), ("user", user_id))
        of_key, of_user = (
            None if name is None else key(CALLER_REQUESTS, caller=f"{kind}:{name}", minute=minute)
            for kind, name in callers
        )
        return of_key, of_user, None, None
    return (
        None if key_id is None else key(KEY_REQUESTS, api_key_id=key_id, minute=minute),
        None if user_id is None else key(USER_REQUESTS, user_id=user_id, minute=minute),
        None if organization_id is None else (key(PLAN_LIMITS, organization_id=organization_id), "requests_per_minute"),
        None if plan_of_user is None else (key(USER, user_id=plan_of_user), "plan"),
    )


def _tell(
    waiting: Sequence[_Counted],
    times: Mapping[str, int],
    lasts: Mapping[str, Any],
    read: Mapping[tuple[str, str], Any],
) -> None:
    """Give each caller its number, in order of arrival."""
    told: Counter[str] = Counter()
    for asked in waiting:
        numbers: dict[str, int] = {}
        refused: Exception | None = None
        for name in asked.counters:
            told[name] += asked.cost
            last = lasts[name]
            if isinstance(last, Exception):  # a key of another type, or out of memory
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
