"""Redis as an accelerator: versions and payloads of resources, and whether Redis is available.

Invariants. A version never decreases: one script writes, and only newer versions. Nothing is ever counted here: after a
FLUSHALL a version is read from PostgreSQL again. An entry records when it was last verified (`checked_ms`, by the
product's clock), and a reader trusts it for `TRUSTED_MS` from then; so after any loss between a commit and Redis, no
reader gets an old version for longer. An unavailable Redis costs a reader only speed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.exceptions import NoPermissionError, NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from highwater.connectors.redis.client import (
    CONNECTIONS_MAX,
    FAILURES,
    TIMEOUT_SECONDS,
    Address,
    Script,
    address_problem,
    failure_reason,
    is_exhausted,
    is_failure,
    open_client,
    replies_of,
)
from highwater.connectors.redis.keys import RESOURCE_PAYLOAD, RESOURCE_VERSION, resource_key
from highwater.connectors.redis.objects import ObjectStore
from highwater.connectors.redis.questions import Questions
from highwater.schemas.errors import UnavailableError
from highwater.streams.telemetry import REDIS_UP, get_log

# The staleness limit of Redis: two seconds after the version was last read from PostgreSQL.
TRUSTED_MS = 2_000
# Redis was not called: our own callers use all connections.
_IN_USE = "all connections to Redis are in use"
# A single timeout may be a slow turn of our own event loop; this many in a row are Redis.
TIMEOUTS_MAX = 3
PROBE_SECONDS = 1.0
# How long an unread entry stays: only garbage collection, `checked_ms` decides.
ENTRY_SECONDS = 3_600
# Heads requested in the same turn of the event loop are sent together; more than this would delay the first ones.
BATCH_MAX = 256

T = TypeVar("T")
_TIMEOUTS = (RedisTimeoutError, TimeoutError)
# Redis scans this many keys in a millisecond, during which nobody else is served.
_NAMES_AT_ONCE = 1_000
# Counters of a cluster's nodes are reported as a sum.
_COUNTERS = ("keyspace_hits", "keyspace_misses", "evicted_keys", "connected_clients", "used_memory")
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
    """Redis does not answer. Reads are served from PostgreSQL; start Redis again."""

    is_ready_without = True


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a resource: everything except its payload.

    `basis` is the version of the resource that this one was built from, None for one that is built from nothing else.
    `built_ms`, `expires_ms` and `stale_until_ms` are when it was built, when its TTL ends and until when it may be
    served while a newer one is built, by the product's clock; None for a resource that only ends with its next version.
    `changed_ms` is when this version was built: later builds with equal bytes do not change it. None in copies of an
    earlier release.
    """

    version: int
    etag: str
    caused_by: str
    checked_ms: int
    basis: int | None = None
    expires_ms: int | None = None
    built_ms: int | None = None
    stale_until_ms: int | None = None
    changed_ms: int | None = None

    def is_trusted(self, now_ms: int) -> bool:
        """Return whether it was verified recently enough; a time in the future means that the clock was moved."""
        return 0 <= now_ms - self.checked_ms <= TRUSTED_MS


def _require_going_on(task: asyncio.Task[Any] | None, cancelled: int) -> None:
    """End a task that was cancelled during a call: the client may lose the cancellation while it connects, and a loop
    of calls would never end.

    `cancelled`: how often it had been cancelled before the call.
    """
    if task is not None and task.cancelling() > cancelled:
        raise asyncio.CancelledError


class RedisLink:
    """One client, and whether it works; every use goes through `run`.

    The link to a cluster is up while every part of it has a primary that answers.
    """

    def __init__(self, url: str | None, setting: str = "REDIS_URL", *, connections_max: int = CONNECTIONS_MAX) -> None:
        self._setting = setting  # the setting of the address
        self._address: Address | None = None
        self.client: Any = None
        if url is not None:
            self._address, self.client = open_client(url, setting, connections_max)
        self.is_cluster = self._address is not None and self._address.is_cluster
        # A server's pool lets callers wait; a cluster node refuses a caller without a free connection.
        self._turns = asyncio.Semaphore(connections_max) if self.is_cluster else None
        self._primaries: frozenset[str] = frozenset()  # of the cluster, as last known
        self.is_up = False
        self._timeouts = 0  # in a row
        self._refusal = ""  # the last one logged
        # Counts the times after which Redis may lack earlier writes: it recovered, or another server took over.
        self.generation = 0
        self.on_back: Callable[[], None] | None = None
        self.reason = "it was not reached yet" if url else f"{setting} is not set"
        self._probing: asyncio.Task[None] | None = None
        self._is_reported = False
        REDIS_UP.set(0)

    def script(self, body: str) -> Script:
        """Return a script to be run on this Redis."""
        return Script(self.client, body)

    async def run(self, call: Awaitable[T]) -> T:
        """Await a call to Redis.

        Raises:
            RedisAwayError: it is unavailable, or this call found that out.
        """
        task = asyncio.current_task()
        cancelled = 0 if task is None else task.cancelling()
        try:
            found = await (call if self._turns is None else self._in_turn(call, self._turns))
        except FAILURES as error:
            _require_going_on(task, cancelled)
            if is_failure(error):
                raise self._failed(error) from error
            # It answers with an error: out of memory, read-only, a key of another type.
            if str(error) != self._refusal:
                self._refusal = str(error)
                _log.warning("Redis refuses a command", reason=str(error))
            raise RedisAwayError(f"Redis refuses: {error}") from error
        self._timeouts = 0
        _require_going_on(task, cancelled)
        if self.is_cluster:
            self._look_at_cluster(found)
        return found

    def _failed(self, error: Exception) -> RedisAwayError:
        if is_exhausted(error):
            return RedisAwayError(_IN_USE)
        reason = failure_reason(error, self._setting)
        self._timeouts += isinstance(error, _TIMEOUTS)
        if not isinstance(error, _TIMEOUTS) or self._timeouts >= TIMEOUTS_MAX:
            self._lost(reason)
        return RedisAwayError(f"Redis is unavailable: {reason}")

    async def _in_turn(self, call: Awaitable[T], turns: asyncio.Semaphore) -> T:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await turns.acquire()
        except BaseException as error:
            if asyncio.iscoroutine(call):
                call.close()
            if isinstance(error, TimeoutError):
                raise RedisAwayError(_IN_USE) from error
            raise
        try:
            return await call
        finally:
            turns.release()

    def _look_at_cluster(self, found: Any) -> None:
        """Check what a call shows besides its answer: that a part of the cluster does not answer, or has a new primary.

        A promoted replica may lack the last second of what its primary had acknowledged.

        Raises:
            RedisAwayError: part of a pipeline was not executed.
        """
        if isinstance(found, list):
            for reply in found:
                if isinstance(reply, Exception) and is_failure(reply):
                    raise self._failed(reply) from reply
        primaries = frozenset(node.name for node in self.client.get_primaries())
        if primaries != self._primaries and self.is_up:
            _log.info("another node of the Redis Cluster took over", primaries=sorted(primaries))
            self._came(primaries)

    def _came(self, primaries: frozenset[str] = frozenset()) -> None:
        self._primaries = primaries
        self.generation += 1
        if self.on_back is not None:
            self.on_back()

    async def replies(self, commands: Sequence[tuple[str | int | bytes, ...]]) -> list[Any]:
        """Return Redis's answers to commands, in one round trip; a refused one is answered with its error.

        Raises:
            RedisAwayError: it is unavailable, or this call found that out.
        """
        return await self.run(replies_of(self.require(), commands, is_cluster=self.is_cluster))

    async def scripted(self, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[str | int]]]) -> list[Any]:
        """Return the answers of a script that is called with several keys and arguments, as `replies`.

        Raises:
            RedisAwayError: it is unavailable, or this call found that out.
        """
        # Each server of a cluster may lack the script, and then calling it by its hash costs a round trip to each.
        known = not self.is_cluster
        found = await self.replies([script.command(*call, is_known=known) for call in calls])
        lacking = [place for place, reply in enumerate(found) if isinstance(reply, NoScriptError)]
        if lacking:
            again = await self.replies([script.command(*calls[place], is_known=False) for place in lacking])
            for place, reply in zip(lacking, again, strict=True):
                found[place] = reply
        return found

    async def names(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """Yield the names of keys that match a glob-style pattern, some at a time; of a cluster those of all primaries.

        Raises:
            RedisAwayError: it is unavailable, or this call found that out.
        """
        client = self.require()
        for place in [{"target_nodes": node} for node in client.get_primaries()] if self.is_cluster else [{}]:
            cursor = 0
            while True:
                then, found = await self.run(client.scan(cursor, match=pattern, count=_NAMES_AT_ONCE, **place))
                if found:
                    yield list(found)
                # For a cluster the client returns the cursor of each queried node.
                cursor = next(iter(then.values())) if isinstance(then, dict) else then
                if not cursor:
                    break

    async def counters(self) -> dict[str, int]:
        """Return Redis's counters since its start; of a cluster the sums over all primaries.

        Raises:
            RedisAwayError: it is unavailable, or this call found that out.
        """
        client = self.require()
        if not self.is_cluster:
            found = [await self.run(client.info())]
        else:
            found = list((await self.run(client.info(target_nodes=client.get_primaries()))).values())
        return {name: sum(int(one[name]) for one in found) for name in _COUNTERS}

    def require(self) -> Any:
        """Return the client.

        Raises:
            RedisAwayError: Redis is known to be unavailable.
        """
        if not self.is_up:
            raise RedisAwayError(f"Redis is unavailable: {self.reason}")
        return self.client

    async def probe(self) -> bool:
        """Check Redis once, and keep checking in the background while it is unavailable."""
        if self._address is None:
            return False
        try:
            primaries = await self._ask_cluster() if self.is_cluster else await self._ask_server(self._address)
        except FAILURES as error:
            self._lost(failure_reason(error, self._setting))
            return False
        except UnavailableError as error:
            self._lost(str(error))
            return False
        if not self.is_up:
            _log.info("Redis is ready")
            self._timeouts = 0
            self.is_up, self.reason, self._is_reported = True, "", True
            REDIS_UP.set(1)
            self._came(primaries)
        return True

    async def _ask_server(self, address: Address) -> frozenset[str]:
        """Raise what is wrong with a server."""
        await self.client.ping()
        if not self.is_up:
            with contextlib.suppress(NoPermissionError):  # a user without permission learns it from the first command
                problem = address_problem(address, await self.client.info("cluster"), self._setting)
                if problem is not None:
                    raise UnavailableError(problem)
        return frozenset()

    async def _ask_cluster(self) -> frozenset[str]:
        """Return the primaries, after each has reported that all parts are served; raises what is wrong."""
        await self.client.initialize()
        if not self.is_up:
            await self.client.nodes_manager.initialize()  # the earlier map may name a primary that is gone
        primaries = self.client.get_primaries()
        for node in primaries:
            state = (await self.client.cluster_info(target_nodes=node)).get("cluster_state")
            if state != "ok":
                raise UnavailableError(f"the Redis Cluster is incomplete: {node.name} says cluster_state:{state}")
        return frozenset(node.name for node in primaries)

    def _lost(self, reason: str) -> None:
        if self.is_up or not self._is_reported:
            _log.warning("Redis is unavailable; reads go on from PostgreSQL", reason=reason)
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


async def open_redis(
    url: str | None, setting: str = "REDIS_URL", *, connections_max: int = CONNECTIONS_MAX
) -> RedisLink:
    """Open a link to Redis, whether it is available or not; the link keeps trying in the background."""
    link = RedisLink(url, setting, connections_max=connections_max)
    await link.probe()
    return link


class ResourceCache:
    """Versions and payloads of served resources. `payloads` is the template of the keys that hold payloads.

    Large ones without user data (`is_impersonal`) are in `objects`, if there is an object storage, and Redis has a
    pointer.
    """

    def __init__(self, link: RedisLink, payloads: str = RESOURCE_PAYLOAD, objects: ObjectStore | None = None) -> None:
        self._link = link
        self._objects = objects
        self._payloads = payloads
        self._put = link.script(_PUT)
        self._announce = link.script(_ANNOUNCE)
        self._waiting: list[tuple[Sequence[str], asyncio.Future[list[Head | None]]]] = []
        self._questions = Questions(self._take, "redis-heads")

    @property
    def is_up(self) -> bool:
        """Return whether a call is worth a try."""
        return self._link.is_up

    async def put(
        self,
        resource: str,
        head: Head,
        payload: bytes | None = None,
        *,
        ttl_seconds: int = ENTRY_SECONDS,
        is_impersonal: bool = False,
    ) -> bool:
        """Store a version with its payload; return False if Redis holds a newer one or is unavailable.

        The latter is not an error: what is not in Redis is read from PostgreSQL.
        """
        try:
            return await self.carry(resource, head, payload, ttl_seconds=ttl_seconds, is_impersonal=is_impersonal)
        except RedisAwayError:
            return False

    async def carry(
        self,
        resource: str,
        head: Head,
        payload: bytes | None = None,
        *,
        ttl_seconds: int = ENTRY_SECONDS,
        is_impersonal: bool = False,
    ) -> bool:
        """Store as `put`, for callers that must know that Redis holds nothing older any more.

        Raises:
            RedisAwayError: it may still hold an older version, perhaps because a single answer was late.
        """
        self._link.require()
        told = [(name, getattr(head, name)) for name in _FIELDS[2:]]
        fields = [part for name, value in told if value is not None for part in (name, value)]
        held = payload or b""
        if self._objects is not None and is_impersonal:
            held = await self._objects.shorten(resource, head.version, held)
        args = [head.version, head.etag, ttl_seconds, held, *fields]
        return bool(await self._link.run(self._put(keys=self._keys(resource), args=args)))

    async def announce(self, resource: str, version: int, *, seconds: int) -> None:
        """Delete a resource from Redis because a new version is coming, or none exists; older ones are refused for this
        long.

        Raises:
            RedisAwayError: an older one may still exist.
        """
        self._link.require()
        await self._link.run(self._announce(keys=self._keys(resource), args=[version, seconds]))

    async def forget(self, resource: str) -> None:
        """Delete a resource from Redis: its owner was erased, and its payload must be deleted too.

        Raises:
            RedisAwayError: it may still exist.
        """
        await self._link.run(self._link.require().delete(*self._keys(resource)))

    def _keys(self, resource: str) -> list[str]:
        return [self._key(RESOURCE_VERSION, resource), self._key(self._payloads, resource)]

    def _key(self, template: str, resource: str) -> str:
        return resource_key(template, resource, is_cluster=self._link.is_cluster)

    async def heads(self, resources: Sequence[str]) -> list[Head | None]:
        """Return the heads of resources in Redis, in one round trip shared with concurrent callers.

        None for missing ones; all None if Redis is unavailable.
        """
        return await self.ask_heads(resources)

    def ask_heads(self, resources: Sequence[str]) -> asyncio.Future[list[Head | None]]:
        """Return a future of `heads`, for a caller that does not wait."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Head | None]] = loop.create_future()
        if not self._link.is_up:
            future.set_result([None] * len(resources))
            return future
        self._waiting.append((resources, future))
        self._questions.wait(is_full=len(self._waiting) >= BATCH_MAX)
        return future

    def _take(self) -> Coroutine[Any, Any, None] | None:
        waiting, self._waiting = self._waiting, []
        return self._flush(waiting) if waiting else None

    async def _flush(self, waiting: list[tuple[Sequence[str], asyncio.Future[list[Head | None]]]]) -> None:
        # A resource that several callers request is read once.
        asked = list(dict.fromkeys(resource for resources, _ in waiting for resource in resources))
        try:
            rows = await self._link.replies(
                [("HMGET", self._key(RESOURCE_VERSION, resource), *_FIELDS) for resource in asked]
            )
            found = {resource: _head(row) for resource, row in zip(asked, rows, strict=True)}
        except RedisAwayError:
            found = {}
        for resources, future in waiting:
            if not future.done():  # the client may have disconnected meanwhile
                future.set_result([found.get(resource) for resource in resources])

    async def payload(self, resource: str, version: int) -> bytes | None:
        """Return the payload of exactly this version; None if Redis does not hold it."""
        if not self._link.is_up:
            return None
        try:
            found = await self._link.run(self._link.client.get(self._key(self._payloads, resource)))
        except RedisAwayError:
            return None
        prefix = b"%d\n" % version
        if found is None or not found.startswith(prefix):
            return None
        held = bytes(found[len(prefix) :])
        return held if self._objects is None else await self._objects.restore(version, held)


_FIELDS = (
    "version",
    "etag",
    "caused_by",
    "checked_ms",
    "basis",
    "expires_ms",
    "built_ms",
    "stale_until_ms",
    "changed_ms",
)


def _head(row: Sequence[bytes | None] | Exception) -> Head | None:
    if isinstance(row, Exception):
        return None  # one key of another type must not hide the others
    version, etag, caused_by, checked_ms, *times = row
    if version is None or etag is None or caused_by is None or checked_ms is None:
        return None
    basis, expires_ms, built_ms, stale_until_ms, changed_ms = (None if value is None else int(value) for value in times)
    return Head(
        version=int(version),
        etag=etag.decode(),
        caused_by=caused_by.decode(),
        checked_ms=int(checked_ms),
        basis=basis,
        expires_ms=expires_ms,
        built_ms=built_ms,
        stale_until_ms=stale_until_ms,
        changed_ms=changed_ms,
    )
