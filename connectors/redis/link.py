"""Redis as an accelerator: versions and payloads of resources, and the knowledge whether Redis is there at all.

Laws. A version never goes back: one script writes, and only what is newer. Nothing is ever counted here: after a FLUSHALL a
version is read from PostgreSQL again. An entry says when it was last seen to be true (`checked_ms`, by the product's
clock), and a reader trusts it for `TRUSTED_MS` from then; so whatever is lost on the way from a commit to Redis, no reader
is told an old version for longer. A Redis that is away costs a reader nothing but speed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from highwater.connectors.redis.keys import RESOURCE_PAYLOAD, RESOURCE_VERSION, key
from highwater.schemas.errors import AccessRefusedError, UnavailableError
from highwater.streams.access import tls_refusal
from highwater.streams.telemetry import REDIS_UP, get_log

# The bound on an old answer from Redis: two seconds from the moment the version was last read from its truth.
TRUSTED_MS = 2_000
# Redis answers in well under a millisecond; one that needs this long is as good as away.
TIMEOUT_SECONDS = 0.25
# With TLS a connection is made in three round trips and some arithmetic.
HANDSHAKE_SECONDS = 1.0
# Of one process at once; a hundred callers share them in turns of well under a millisecond.
CONNECTIONS_MAX = 50
# A single timeout may be a turn of our own event loop that took too long; this many in a row are Redis.
TIMEOUTS_MAX = 3
PROBE_SECONDS = 1.0
# How long an unread entry stays: garbage collection only, `checked_ms` decides.
ENTRY_SECONDS = 3_600
# Heads asked for in the same turn of the event loop travel together; more than this would delay the first of them.
BATCH_MAX = 256

T = TypeVar("T")
_TIMEOUTS = (RedisTimeoutError, TimeoutError)
_FAILURES = (RedisError, OSError, TimeoutError)
_log = get_log("redis")

_PUT = """
local held = tonumber(redis.call('HGET', KEYS[1], 'version') or '-1')
local version = tonumber(ARGV[1])
if version < held then return 0 end
if version > held or redis.call('HGET', KEYS[1], 'etag') ~= ARGV[2] then redis.call('DEL', KEYS[1], KEYS[2]) end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'etag', ARGV[2], unpack(ARGV, 5))
redis.call('EXPIRE', KEYS[1], ARGV[3])
if ARGV[4] ~= '' then redis.call('SET', KEYS[2], ARGV[1] .. '\\n' .. ARGV[4], 'EX', ARGV[3])
else redis.call('EXPIRE', KEYS[2], ARGV[3]) end
return 1
"""

_ANNOUNCE = """
if tonumber(ARGV[1]) <= tonumber(redis.call('HGET', KEYS[1], 'version') or '-1') then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[1], 'version', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""


class RedisAwayError(UnavailableError):
    """Redis does not answer. What needs nothing else is served from PostgreSQL; start Redis again."""


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a resource without its payload.

    `basis` is the version of the resource that this one was made from, None for a resource that is made from nothing else.
    `built_ms`, `expires_ms` and `stale_until_ms` are when it was made, until when it is good and until when it may be served
    while a newer one is made, by the product's clock; None for a resource that only ends with its next version.
    """

    version: int
    etag: str
    caused_by: str
    checked_ms: int
    basis: int | None = None
    expires_ms: int | None = None
    built_ms: int | None = None
    stale_until_ms: int | None = None

    def is_trusted(self, now_ms: int) -> bool:
        """Whether it was seen to be true so lately that it still counts; a time in the future was a moved clock."""
        return 0 <= now_ms - self.checked_ms <= TRUSTED_MS


class RedisLink:
    """One client and the knowledge whether it works; every use goes through `run`."""

    def __init__(self, url: str | None, setting: str = "REDIS_URL") -> None:
        self.client: Any = None
        self._setting = setting  # that the address is from
        if url is not None:
            self.client = Redis.from_pool(
                # A call that finds all connections in use waits for one: that is no Redis that is away.
                BlockingConnectionPool.from_url(
                    url,
                    max_connections=CONNECTIONS_MAX,
                    timeout=TIMEOUT_SECONDS,
                    socket_timeout=TIMEOUT_SECONDS,
                    socket_connect_timeout=HANDSHAKE_SECONDS if url.startswith("rediss://") else TIMEOUT_SECONDS,
                    retry=Retry(NoBackoff(), 0),  # a repeat is the caller's business; a hidden one triples the wait
                    protocol=2,
                )
            )
        self.is_up = False
        self._timeouts = 0  # in a row
        self._refusal = ""  # the last one logged
        self.generation = 0  # counts the times it came back
        self.on_back: Callable[[], None] | None = None
        self.reason = "it was not reached yet" if url else f"{setting} is not set"
        self._probing: asyncio.Task[None] | None = None
        self._is_reported = False
        REDIS_UP.set(0)

    async def run(self, call: Awaitable[T]) -> T:
        """Await a call to Redis.

        Raises:
            RedisAwayError: it is away, or this call found that out.
        """
        try:
            found = await call
        except ResponseError as error:  # it answers, but not this: out of memory, read-only, a key of another type
            if str(error) != self._refusal:
                self._refusal = str(error)
                _log.warning("Redis refuses a command", reason=str(error))
            raise RedisAwayError(f"Redis refuses: {error}") from error
        except _FAILURES as error:
            reason = failure_reason(error, self._setting)
            self._timeouts += isinstance(error, _TIMEOUTS)
            if not isinstance(error, _TIMEOUTS) or self._timeouts >= TIMEOUTS_MAX:
                self._lost(reason)
            raise RedisAwayError(f"Redis is away: {reason}") from error
        self._timeouts = 0
        return found

    def require(self) -> Any:
        """The client.

        Raises:
            RedisAwayError: Redis is known to be away.
        """
        if not self.is_up:
            raise RedisAwayError(f"Redis is away: {self.reason}")
        return self.client

    async def probe(self) -> bool:
        """Ask Redis once, and keep asking in the background while it is away."""
        if self.client is None:
            return False
        try:
            await self.client.ping()
        except _FAILURES as error:
            self._lost(failure_reason(error, self._setting))
            return False
        if not self.is_up:
            _log.info("Redis is ready")
            self.generation += 1
            self._timeouts = 0
            self.is_up, self.reason, self._is_reported = True, "", True
            REDIS_UP.set(1)
            if self.on_back is not None:
                self.on_back()
        return True

    def _lost(self, reason: str) -> None:
        if self.is_up or not self._is_reported:
            _log.warning("Redis is away; reads go on from PostgreSQL", reason=reason)
        self.is_up, self.reason, self._is_reported = False, reason, True
        REDIS_UP.set(0)
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe_until_back(), name="redis-probe")

    async def _probe_until_back(self) -> None:
        while not self.is_up:
            await asyncio.sleep(PROBE_SECONDS)
            await self.probe()

    async def close(self) -> None:
        """Close the connections."""
        if self._probing is not None:
            self._probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._probing
        if self.client is not None:
            await self.client.aclose()


async def open_redis(url: str | None, setting: str = "REDIS_URL") -> RedisLink:
    """A link to Redis, whether it is there or not; it is looked for in the background until it is."""
    link = RedisLink(url, setting)
    await link.probe()
    return link


async def ask_once(url: str, seconds: float) -> str:
    """The version of the Redis at an address, asked for over a connection of its own.

    Raises:
        AccessRefusedError: it refuses the credentials, or is not trusted.
        UnavailableError: it does not answer.
    """
    client = Redis.from_url(url, socket_timeout=seconds, socket_connect_timeout=seconds)
    try:
        return str((await client.info("server"))["redis_version"])
    except (*_FAILURES, ValueError) as error:
        kind = AccessRefusedError if _is_refusal(error) else UnavailableError
        raise kind(failure_reason(error, "REDIS_URL")) from error
    finally:
        await client.aclose()


def failure_reason(error: BaseException, setting: str) -> str:
    """Why a call failed, in one line; where the address of `setting` is to blame, with its name."""
    untrusted = tls_refusal(error)
    if untrusted is not None:
        return f"the server of {setting} is not trusted (ssl_ca_certs): {untrusted}"
    if isinstance(error, AuthenticationError):
        return f"{setting} is refused: {error}"
    return str(error) or type(error).__name__


def _is_refusal(error: BaseException) -> bool:
    return isinstance(error, AuthenticationError) or tls_refusal(error) is not None


class ResourceCache:
    """Versions and payloads of served resources. `payloads` is the template of the keys that hold payloads."""

    def __init__(self, link: RedisLink, payloads: str = RESOURCE_PAYLOAD) -> None:
        self._link = link
        self._payloads = payloads
        self._put = link.client.register_script(_PUT) if link.client is not None else None
        self._announce = link.client.register_script(_ANNOUNCE) if link.client is not None else None
        self._waiting: list[tuple[Sequence[str], asyncio.Future[list[Head | None]]]] = []
        self._flushes: set[asyncio.Task[None]] = set()

    @property
    def is_up(self) -> bool:
        """Whether asking is worth a try."""
        return self._link.is_up

    async def put(
        self, resource: str, head: Head, payload: bytes | None = None, *, ttl_seconds: int = ENTRY_SECONDS
    ) -> bool:
        """Store a version and, with it, its payload; False when Redis holds a newer one or is away.

        Being away is not an error here: what is not in Redis is read from PostgreSQL.
        """
        try:
            return await self.carry(resource, head, payload, ttl_seconds=ttl_seconds)
        except RedisAwayError:
            return False

    async def carry(
        self, resource: str, head: Head, payload: bytes | None = None, *, ttl_seconds: int = ENTRY_SECONDS
    ) -> bool:
        """As `put`, for whoever has to know that Redis holds nothing older any more.

        Raises:
            RedisAwayError: it may still hold an older version, be it that a single answer was late.
        """
        self._link.require()
        assert self._put is not None  # there is a client when the link is up
        told = [(name, getattr(head, name)) for name in _FIELDS[2:]]
        fields = [part for name, value in told if value is not None for part in (name, value)]
        args = [head.version, head.etag, ttl_seconds, payload or b"", *fields]
        return bool(await self._link.run(self._put(keys=self._keys(resource), args=args)))

    async def announce(self, resource: str, version: int, *, seconds: int) -> None:
        """Take a resource out of Redis because a version is coming, or nothing is; older ones are refused for so long.

        Raises:
            RedisAwayError: an older one may still be there.
        """
        self._link.require()
        assert self._announce is not None  # there is a client when the link is up
        await self._link.run(self._announce(keys=self._keys(resource), args=[version, seconds]))

    async def forget(self, resource: str) -> None:
        """Take a resource out of Redis: its owner was erased, and a payload must not outlive that.

        Raises:
            RedisAwayError: it may still be there.
        """
        await self._link.run(self._link.require().delete(*self._keys(resource)))

    def _keys(self, resource: str) -> list[str]:
        return [key(RESOURCE_VERSION, key=resource), key(self._payloads, key=resource)]

    async def heads(self, resources: Sequence[str]) -> list[Head | None]:
        """What Redis holds of each resource, in one round trip shared with whoever asks at the same moment.

        None for what it does not hold; all None when Redis is away.
        """
        if not self._link.is_up:
            return [None] * len(resources)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Head | None]] = loop.create_future()
        self._waiting.append((resources, future))
        if len(self._waiting) == 1:
            loop.call_soon(self._start_flush)
        elif len(self._waiting) >= BATCH_MAX:
            self._start_flush()
        return await future

    def _start_flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            task = asyncio.create_task(self._flush(waiting), name="redis-heads")
            self._flushes.add(task)
            task.add_done_callback(self._flushes.discard)

    async def _flush(self, waiting: list[tuple[Sequence[str], asyncio.Future[list[Head | None]]]]) -> None:
        pipeline = self._link.client.pipeline(transaction=False)
        for resources, _ in waiting:
            for resource in resources:
                pipeline.hmget(key(RESOURCE_VERSION, key=resource), _FIELDS)
        try:
            rows = iter(await self._link.run(pipeline.execute(raise_on_error=False)))
        except RedisAwayError:
            rows = repeat([None] * len(_FIELDS))
        for resources, future in waiting:
            found = [_head(next(rows)) for _ in resources]
            if not future.done():  # the client may have gone away meanwhile
                future.set_result(found)

    async def payload(self, resource: str, version: int) -> bytes | None:
        """The payload of exactly this version; None when Redis does not hold it."""
        if not self._link.is_up:
            return None
        try:
            found = await self._link.run(self._link.client.get(key(self._payloads, key=resource)))
        except RedisAwayError:
            return None
        prefix = b"%d\n" % version
        return bytes(found[len(prefix) :]) if found is not None and found.startswith(prefix) else None


_FIELDS = ("version", "etag", "caused_by", "checked_ms", "basis", "expires_ms", "built_ms", "stale_until_ms")


def _head(row: Sequence[bytes | None] | Exception) -> Head | None:
    if isinstance(row, Exception):
        return None  # one key of another type must not hide the others
    version, etag, caused_by, checked_ms, *times = row
    if version is None or etag is None or caused_by is None or checked_ms is None:
        return None
    basis, expires_ms, built_ms, stale_until_ms = (None if value is None else int(value) for value in times)
    return Head(
        version=int(version),
        etag=etag.decode(),
        caused_by=caused_by.decode(),
        checked_ms=int(checked_ms),
        basis=basis,
        expires_ms=expires_ms,
        built_ms=built_ms,
        stale_until_ms=stale_until_ms,
    )
