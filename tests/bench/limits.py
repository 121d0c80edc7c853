"""Decisions of the rate limit a second and their latency, beside the `limits` package (MIT) on the same Redis in the same run.

A request waits for a decision: its count over all processes, and whether it is allowed. Both count fixed minutes. Ours
returns in the same round trip the remaining calls, which the headers of an answer need; `limits` returns yes or no and would
need a second query. `key` counts one key a decision; `key and user`, what the API does, two: by one own call, by two calls
side by side of `limits`, whose fixed window takes one key. It runs on each client that is installed: redis-py, which is ours
too, and coredis, its default. A closed loop of N tasks decides one after the other, over 100 keys; the systems run in turn.
Processor time of the calling process is the same on a busy machine, unlike rates and latencies.

    python -m tests.bench.limits [--runs N] [--decisions N] [--in-flight 1,32,256]
"""

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import redis

from highwater.connectors.identity.rate_limits import CallCounts, RateSubject
from highwater.connectors.redis.link import open_redis
from highwater.deploy.local.part import STOP_LIMIT
from highwater.deploy.local.ports import PortBook
from highwater.deploy.local.redis import Redis
from highwater.streams.clock import ProductClock, monotonic_seconds
from highwater.streams.identity.rate_limits import decide
from tests.bench.figures import Figure, figure

DECISIONS, IN_FLIGHT = 20_000, (1, 32, 256)
KEYS = 100
# No decision is a refusal: one costs the same, and in `limits` a little less.
LIMIT = 1_000_000_000
# Decisions before those that count: connections and scripts.
WARM = 500
READY_SECONDS_MAX = 20.0
CONNECTIONS_MAX = 1_024
CLIENTS = {"redispy": "redis", "coredis": "coredis"}
MISSING = "the peer is left out: pip install 'highwater[bench]' (limits, and coredis for its default client)"

FIGURES = (("decisions", "1/s"), ("p50", "ms"), ("p99", "ms"), ("processor time a decision", "us"))

Decide = Callable[[int], Awaitable[bool]]


def run(runs: int = 3, decisions: int = DECISIONS, in_flight: tuple[int, ...] = IN_FLIGHT) -> list[Figure]:
    """All figures."""
    with _redis() as url:
        measured = asyncio.run(_measure(url, runs, decisions, in_flight))
    found = []
    for (system, tasks), values in measured.items():
        for place, (name, unit) in enumerate(FIGURES):
            found.append(figure(f"{name}, {tasks} in flight", system, unit, [value[place] for value in values]))
    return found


@contextlib.contextmanager
def _redis() -> Iterator[str]:
    """A Redis of the benchmark's own."""
    with tempfile.TemporaryDirectory(prefix="highwater-bench-limits-") as folder:
        part = Redis(Path(folder), PortBook(Path(folder)))
        part.take_ports()
        part.prepare()
        part.process.start(part.command())
        try:
            _wait_for(part.address)
            yield part.address
        finally:
            part.process.stop(STOP_LIMIT)


def _wait_for(url: str) -> None:
    deadline = monotonic_seconds() + READY_SECONDS_MAX
    with redis.Redis.from_url(url) as client:
        while True:
            try:
                client.ping()
            except redis.ConnectionError:
                if monotonic_seconds() > deadline:
                    raise
            else:
                return


async def _measure(
    url: str, runs: int, decisions: int, in_flight: tuple[int, ...]
) -> Mapping[tuple[str, int], list[tuple[float, ...]]]:
    measured: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    async with _systems(url) as systems:
        for decide_one in systems.values():
            await _loop(decide_one, WARM, 8)
        for _ in range(runs):
            for tasks in in_flight:
                for name, decide_one in systems.items():
                    measured.setdefault((name, tasks), []).append(await _loop(decide_one, decisions, tasks))
    return measured


@contextlib.asynccontextmanager
async def _systems(url: str) -> AsyncIterator[dict[str, Decide]]:
    link, clock = await open_redis(url), ProductClock()
    counts = CallCounts(link, 15)

    async def ours(number: int) -> bool:
        now_ms = clock()
        counted = await counts.count(RateSubject(f"key{number % KEYS}"), now_ms)
        return decide(counted.of_key or 0, LIMIT, now_ms).is_allowed

    async def ours_both(number: int) -> bool:
        now_ms = clock()
        counted = await counts.count(RateSubject(f"key{number % KEYS}", f"user{number % KEYS}"), now_ms)
        verdicts = [decide(count or 0, LIMIT, now_ms) for count in (counted.of_key, counted.of_user)]
        return all(verdict.is_allowed for verdict in verdicts)

    try:
        yield {"highwater, key": ours, "highwater, key and user": ours_both, **_peers(url)}
    finally:
        await link.close()


def _peers(url: str) -> dict[str, Decide]:
    """`limits` on each client that there is."""
    if importlib.util.find_spec("limits") is None:
        print(MISSING, file=sys.stderr)
        return {}
    found: dict[str, Decide] = {}
    for client, module in CLIENTS.items():
        if importlib.util.find_spec(module) is None:
            print(MISSING, file=sys.stderr)
            continue
        hit = _peer(url, client)
        found[f"limits on {module}, key"] = lambda number, hit=hit: hit("key", number)
        found[f"limits on {module}, key and user"] = lambda number, hit=hit: _both(hit, number)
    return found


def _peer(url: str, client: str) -> Callable[[str, int], Awaitable[bool]]:
    from limits import RateLimitItemPerMinute
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import FixedWindowRateLimiter

    # As many connections as decisions wait for, two each: with fewer (redis-py's default is 100) decisions fail.
    options = {"max_connections": CONNECTIONS_MAX}
    limiter = FixedWindowRateLimiter(RedisStorage(f"async+{url}", implementation=client, **options))
    item = RateLimitItemPerMinute(LIMIT)

    async def hit(kind: str, number: int) -> bool:
        return bool(await limiter.hit(item, kind, str(number % KEYS)))

    return hit


async def _both(hit: Callable[[str, int], Awaitable[bool]], number: int) -> bool:
    return all(await asyncio.gather(hit("key", number), hit("user", number)))


async def _loop(decide_one: Decide, decisions: int, tasks: int) -> tuple[float, ...]:
    """Decisions a second, the median and 99th percentile of their latency, and the processor time of this process a decision."""
    numbers = iter(range(decisions))
    latencies: list[float] = []

    async def one_after_another() -> None:
        for number in numbers:
            began = monotonic_seconds()
            allowed = await decide_one(number)
            latencies.append((monotonic_seconds() - began) * 1000)
            assert allowed

    began, used = monotonic_seconds(), os.times()
    await asyncio.gather(*(one_after_another() for _ in range(tasks)))
    seconds, now = monotonic_seconds() - began, os.times()
    cpu_seconds = now.user + now.system - used.user - used.system
    p50, p99 = np.percentile(latencies, (50, 99))
    return decisions / seconds, float(p50), float(p99), cpu_seconds * 1_000_000 / decisions


def main() -> None:
    """Print one JSON object per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--decisions", type=int, default=DECISIONS)
    parser.add_argument("--in-flight", type=lambda text: tuple(map(int, text.split(","))), default=IN_FLIGHT)
    chosen: Any = parser.parse_args()
    for found in run(chosen.runs, chosen.decisions, chosen.in_flight):
        print(json.dumps(found))


if __name__ == "__main__":
    main()
