"""Redis as an accelerator: versions and payloads of resources, and the knowledge whether Redis is there at all.

Invariants. A version never goes back: one script writes, and only what is newer. Nothing is ever counted here: after a FLUSHALL
a version is read from PostgreSQL again. An entry says when it was last seen to be true (`checked_ms`, by the product's clock),
and a reader trusts it for `TRUSTED_MS` from then; so whatever is lost on the way from a commit to Redis, no reader is told an
old version for longer. A Redis that is away costs a reader nothing but speed.
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

# The bound on an old answer from Redis: two seconds from the moment the version was last read from its truth.
TRUSTED_MS = 2_000
# Nobody asked Redis: our own callers have all connections.
_IN_USE = "all connections to Redis are in use"
# A single timeout may be a turn of our own event loop that took too long; this many in a row are Redis.
TIMEOUTS_MAX = 3
PROBE_SECONDS = 1.0
# How long an unread entry stays: garbage collection only, `checked_ms` decides.
ENTRY_SECONDS = 3_600
# Heads asked for in the same turn of the event loop travel together; more than this would delay the first of them.
BATCH_MAX = 256

T = TypeVar("T")
_TIMEOUTS = (RedisTimeoutError, TimeoutError)
# Redis looks at so many keys in a millisecond, during which nobody else is served.
_NAMES_AT_ONCE = 1_000
# What a cluster counts by node is told as a sum.
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
    """What is known of a resource without its payload.

    `basis` is the version of the resource that this one was made from, None for a resource that is made from nothing else.
    `built_ms`, `expires_ms` and `stale_until_ms` are when it was made, until when it is good and until when it may be served
    while a newer one is made, by the product's clock; None for a resource that only ends with its next version. `changed_ms` is
    when this version was made: later makings that came out the same leave it as it is. None in copies of an earlier release.
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
        """Whether it was seen to be true so lately that it still counts; a time in the future was a moved clock."""
        return 0 <= now_ms - self.checked_ms <= TRUSTED_MS


def _require_going_on(task: asyncio.Task[Any] | None, cancelled: int) -> None:
    """End a task that was cancelled during a call: the client may lose that while it connects, and a loop of calls never ended.

    `cancelled`: how often it had been before the call.
    """
    if task is not None and task.cancelling() > cancelled:
        raise asyncio.CancelledError


class RedisLink:
    """One client and the knowledge whether it works; every use goes through `run`.

    Of a cluster the link is up while every part of it has a primary that answers.
    """

    def __init__(self, url: str | None, setting: str = "REDIS_URL", *, connections_max: int = CONNECTIONS_MAX) -> None:
        self._setting = setting  # that the address is from
        self._address: Address | None = None
        self.client: Any = None
        if url is not None:
            self._address, self.client = open_client(url, setting, connections_max)
        self.is_cluster = self._address is not None and self._address.is_cluster
        # A server's pool has its callers wait; a node of a cluster refuses whom it has no connection for.
        self._turns = asyncio.Semaphore(connections_max) if self.is_cluster else None
        self._primaries: frozenset[str] = frozenset()  # of the cluster, as they were last known
        self.is_up = False
        self._timeouts = 0  # in a row
        self._refusal = ""  # the last one logged
        # Counts the times from which on Redis may lack what it was told before: it came back, or another server took over.
        self.generation = 0
        self.on_back: Callable[[], None] | None = None
        self.reason = "it was not reached yet" if url else f"{setting} is not set"
        self._probing: asyncio.Task[None] | None = None
        self._is_reported = False
        REDIS_UP.set(0)

    def script(self, body: str) -> Script:
        """A script to be run on this Redis."""
        return Script(self.client, body)

    async def run(self, call: Awaitable[T]) -> T:
        """Await a call to Redis.

        Raises:
            RedisAwayError: it is away, or this call found that out.
        """
        task = asyncio.current_task()
        cancelled = 0 if task is None else task.cancelling()
        try:
            found = await (call if self._turns is None else self._in_turn(call, self._turns))
        except FAILURES as error:
            _require_going_on(task, cancelled)
            if is_failure(error):
                raise self._failed(error) from error
            # It answers, but not this: out of memory, read-only, a key of another type.
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
        """What a call tells besides its answer: that a part does not answer, or is another server's now.

        A replica that took over may lack the last second of what its primary had acknowledged.

        Raises:
            RedisAwayError: some of a pipeline was not done.
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
        """What Redis answers to commands, in one round trip; one that it refuses is answered with its error.

        Raises:
            RedisAwayError: it is away, or this call found that out.
        """
        return await self.run(replies_of(self.require(), commands, is_cluster=self.is_cluster))

    async def scripted(self, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[str | int]]]) -> list[Any]:
        """As `replies`, to a script that is called with keys and arguments, each call for itself.

        Raises:
            RedisAwayError: it is away, or this call found that out.
        """
        # Each server of a cluster may lack the script, and then asking by its hash costs a round trip to each.
        known = not self.is_cluster
        found = await self.replies([script.command(*call, is_known=known) for call in calls])
        lacking = [place for place, reply in enumerate(found) if isinstance(reply, NoScriptError)]
        if lacking:
            again = await self.replies([script.command(*calls[place], is_known=False) for place in lacking])
            for place, reply in zip(lacking, again, strict=True):
                found[place] = reply
        return found

    async def names(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """The names of keys that a glob-style pattern describes, some at a time; of a cluster those of all primaries.

        Raises:
            RedisAwayError: it is away, or this call found that out.
        """
        client = self.require()
        for place in [{"target_nodes": node} for node in client.get_primaries()] if self.is_cluster else [{}]:
            cursor = 0
            while True:
                then, found = await self.run(client.scan(cursor, match=pattern, count=_NAMES_AT_ONCE, **place))
                if found:
                    yield list(found)
                # Of a cluster the client tells the cursor of each node that was asked.
                cursor = next(iter(then.values())) if isinstance(then, dict) else then
                if not cursor:
                    break

    async def counters(self) -> dict[str, int]:
        """What Redis counts of itself since it began; of a cluster all primaries together.

        Raises:
            RedisAwayError: it is away, or this call found that out.
        """
        client = self.require()
        if not self.is_cluster:
            found = [await self.run(client.info())]
        else:
            found = list((await self.run(client.info(target_nodes=client.get_primaries()))).values())
        return {name: sum(int(one[name]) for one in found) for name in _COUNTERS}

    def require(self) -> Any:
        """The client.

        Raises:
            RedisAwayError: Redis is known to be away.
        """
        if not self.is_up:
            raise RedisAwayError(f"Redis is unavailable: {self.reason}")
        return self.client

    async def probe(self) -> bool:
        """Ask Redis once, and keep asking in the background while it is away."""
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
            with contextlib.suppress(NoPermissionError):  # who may not ask learns it from the first command
                problem = address_problem(address, await self.client.info("cluster"), self._setting)
                if problem is not None:
                    raise UnavailableError(problem)
        return frozenset()

    async def _ask_cluster(self) -> frozenset[str]:
        """The primaries, after each has said that all parts are served; raises what is wrong."""
        await self.client.initialize()
        if not self.is_up:
            await self.client.nodes_manager.initialize()  # the map of before may name a primary that is gone
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
    """A link to Redis, whether it is there or not; it is looked for in the background until it is."""
    link = RedisLink(url, setting, connections_max=connections_max)
    await link.probe()
    return link


class ResourceCache:
    """Versions and payloads of served resources. `payloads` is the template of the keys that hold payloads.

    Big ones that hold nothing of a user (`is_impersonal`) are in `objects`, if there is such a storage, and here is a pointer.
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
        """Whether asking is worth a try."""
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
        """Store a version and, with it, its payload; False when Redis holds a newer one or is away.

        Being away is not an error here: what is not in Redis is read from PostgreSQL.
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
        """As `put`, for whoever has to know that Redis holds nothing older any more.

        Raises:
            RedisAwayError: it may still hold an older version, be it that a single answer was late.
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
        """Take a resource out of Redis because a version is coming, or nothing is; older ones are refused for so long.

        Raises:
            RedisAwayError: an older one may still be there.
        """
        self._link.require()
        await self._link.run(self._announce(keys=self._keys(resource), args=[version, seconds]))

    async def forget(self, resource: str) -> None:
        """Take a resource out of Redis: its owner was erased, and a payload must not outlive that.

        Raises:
            RedisAwayError: it may still be there.
        """
        await self._link.run(self._link.require().delete(*self._keys(resource)))

    def _keys(self, resource: str) -> list[str]:
        return [self._key(RESOURCE_VERSION, resource), self._key(self._payloads, resource)]

    def _key(self, template: str, resource: str) -> str:
        return resource_key(template, resource, is_cluster=self._link.is_cluster)

    async def heads(self, resources: Sequence[str]) -> list[Head | None]:
        """What Redis holds of each resource, in one round trip shared with whoever asks at the same moment.

        None for what it does not hold; all None when Redis is away.
        """
        return await self.ask_heads(resources)

    def ask_heads(self, resources: Sequence[str]) -> asyncio.Future[list[Head | None]]:
        """What `heads` gives, for a caller that does not wait."""
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
        # A resource that several ask for is read once.
        asked = list(dict.fromkeys(resource for resources, _ in waiting for resource in resources))
        try:
            rows = await self._link.replies(
                [("HMGET", self._key(RESOURCE_VERSION, resource), *_FIELDS) for resource in asked]
            )
            found = {resource: _head(row) for resource, row in zip(asked, rows, strict=True)}
        except RedisAwayError:
            found = {}
        for resources, future in waiting:
            if not future.done():  # the client may have gone away meanwhile
                future.set_result([found.get(resource) for resource in resources])

    async def payload(self, resource: str, version: int) -> bytes | None:
        """The payload of exactly this version; None when Redis does not hold it."""
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
