"""Calls counted over all processes that share a Redis: of keys and users by the minute (R2.27, R2.30, R2.31), of addresses
in a window that slides (R4.36). Each is one round trip.

Laws. Whoever asks gets the number that an INCR of its own would have given, so no two requests of a minute have one number. All
that is asked in one turn of the event loop travels together, and a key named by several of them is counted by one command.
Nothing is remembered here: a Redis that lost its counters begins the minute anew. In no window are more calls of an address
admitted than the limit, by the rule of `streams/identity/rate_limits.py`.
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

# As those of `ResourceCache`: more in one pipeline would delay the first of them.
BATCH_MAX = 256

# KEYS[1] the times, the newest first; ARGV now, most, window, calls. Answers how many of so many calls at `now` are admitted, and
# in how many ms one that is not may come again. The list is at most as long as the limit, so the place that a call would push
# out tells whether there is room for it. Times after now (another process is a millisecond ahead, or a clock was moved back) are
# rewritten as now, as `admit` does, a hundred at a time: as a rule there are few. The key goes a window after its last request.
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


class Whose(NamedTuple):
    """Who is counted: an API key by its id, a user, or both. And what is read with it: an organization's limit, a user's plan.

    `by_plan` False: counted beside the requests of the plan.
    """

    key_id: str | None = None
    user_id: str | None = None
    organization_id: str | None = None
    plan_of_user: str | None = None
    by_plan: bool = True


class Counted(NamedTuple):
    """The number of a request in its minute, by key and by user; None for what is not counted. Of one that costs more, the last.

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
    cost: int = 1

    @property
    def counters(self) -> tuple[str, ...]:
        return tuple(name for name in (self.of_key, self.of_user) if name is not None)

    @property
    def reads(self) -> tuple[tuple[str, str], ...]:
        return tuple(place for place in (self.limit_at, self.plan_at) if place is not None)


class CallCounts:
    """Counts calls, over all processes that share a Redis; those of addresses are admitted by the clocks of the processes."""

    def __init__(self, link: RedisLink, calls_max: int, window_ms: int = LIVE_WINDOW_MS) -> None:
        """`calls_max`: those of an address in a window."""
        self._link = link
        self._calls_max = calls_max
        self._window_ms = window_ms
        self._script = link.script(_ADMIT)
        self._waiting: list[_Asked] = []
        self._addresses: dict[tuple[str, int], list[asyncio.Future[int]]] = {}  # by address and time
        self._questions = Questions(self._take, "call-counts")

    async def count(self, whose: Whose, now_ms: int, cost: int = 1) -> Counted:
        """Count a request in the minute of `now_ms`, as so many as it costs.

        Raises:
            RedisAwayError: nobody can tell over all processes.
        """
        self._link.require()
        future: asyncio.Future[Counted] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Asked(*_names(whose, minute_of(now_ms)), future, cost))
        self._questions.wait(is_full=len(self._waiting) >= BATCH_MAX)
        return await future

    async def retry_after_ms(self, address: str, now_ms: int) -> int:
        """0: admitted, and counted; else in how many ms it may come again.

        Raises:
            RedisAwayError: nobody can tell over all processes.
        """
        return await self.ask(address, now_ms)

    def ask(self, address: str, now_ms: int) -> asyncio.Future[int]:
        """What `retry_after_ms` gives, for a caller that does not wait; its errors are those of the future."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if not self._link.is_up:
            future.set_exception(RedisAwayError(f"Redis is away: {self._link.reason}"))
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
        self, waiting: Sequence[_Asked], addresses: Mapping[tuple[str, int], Sequence[asyncio.Future[int]]]
    ) -> None:
        await asyncio.gather(self._flush(waiting), self._flush_addresses(addresses))

    async def _flush(self, waiting: Sequence[_Asked]) -> None:
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
                if not asked.future.done():  # the client may have gone away meanwhile
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
                if future.done():  # the client may have gone away meanwhile
                    continue
                if isinstance(reply, RedisAwayError):
                    future.set_exception(reply)
                elif isinstance(reply, Exception):
                    future.set_exception(RedisAwayError(f"Redis refuses to count: {reply}"))
                else:
                    future.set_result(0 if number < reply[0] else int(reply[1]))


def _names(whose: Whose, minute: str) -> tuple[str | None, str | None, tuple[str, str] | None, tuple[str, str] | None]:
    """The counters, and the fields that are read with them."""
    key_id, user_id, organization_id, plan_of_user, by_plan = whose
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
            told[name] += asked.cost
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
