"""The link to Redis as an accelerator: calls with time limits, and whether Redis is available.

Invariants. An unavailable Redis costs a reader only speed: a loss is noticed once, and until a probe succeeds no call is
sent. Nothing is ever counted here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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
from highwater.schemas.errors import UnavailableError
from highwater.streams.telemetry import REDIS_UP, get_log

# Redis was not called: our own callers use all connections.
_IN_USE = "all connections to Redis are in use"
# A single timeout may be a slow turn of our own event loop; this many in a row are Redis.
TIMEOUTS_MAX = 3
PROBE_SECONDS = 1.0

T = TypeVar("T")
_TIMEOUTS = (RedisTimeoutError, TimeoutError)
# Redis scans this many keys in a millisecond, during which nobody else is served.
_NAMES_AT_ONCE = 1_000
# Counters of a cluster's nodes are reported as a sum.
_COUNTERS = ("keyspace_hits", "keyspace_misses", "evicted_keys", "connected_clients", "used_memory")
_log = get_log("redis")


class RedisAwayError(UnavailableError):
    """Redis does not answer. Reads are served from PostgreSQL; start Redis again."""

    is_ready_without = True


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
            _log.warning("Redis is unavailable; reads continue from PostgreSQL", reason=reason)
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
