"""How long a rebuild takes, from the request in a worker's hands to the commit: read, cluster, label, map, store.

The insights are commits with the product's vectors (`tests/bench/data.py`; past their number repeated with small
differences). A window of n is the newest n of a channel. *Whole* is a user's first version, made by a process that has read
none of it. *1 % new* follows: N newer ones come and as many leave. It is made by the process that made the version before,
and once more by a fresh one, since a process ends after a minute without work. Processes are started before the clock. The
peer is a script that an analyst would write for the same rows (`rebuild_peer.py`); it keeps nothing from one time to the
next.

CPU seconds are those of the worker and its process; PostgreSQL's, which both have it do, are left out. Peak memory is that of the
process, which the kernel holds to 1 GiB (`pool.MEMORY_BYTES_MAX`).

*At once*: N users request a rebuild at the same moment, through Kafka and the consumer framework, and two processes rebuild;
the waiting time of a user counts from that moment on. First all for the first time, then all with 1 % new.

    python -m tests.bench.rebuild [--runs N] [--windows N,N] [--users N] [--users-window N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from highwater.connectors.feeds.pool import MEMORY_BYTES_MAX, ClusterPool
from highwater.connectors.feeds.worker_rebuild import RebuildWorker, Work
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.kafka.records import Event, Record
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.postgres.migrate import migrate
from highwater.connectors.postgres.pool import open_pool
from highwater.connectors.redis.link import RedisLink, open_redis
from highwater.deploy.local.stack import LocalStack
from highwater.schemas.feeds import REBUILD_REQUESTED, RebuildRequested
from highwater.schemas.topics import TOPICS, all_topics
from highwater.streams.clock import ProductClock, monotonic_seconds, to_datetime
from highwater.streams.feeds.basis import UNFITTED_ID
from highwater.streams.feeds.policy import load_policy
from highwater.streams.feeds.versions import Window
from highwater.streams.heap import settle_heap
from highwater.streams.settings import Settings, read_settings
from highwater.streams.telemetry import configure_logging
from tests import ROOT
from tests.bench import data
from tests.bench.cluster import latest_vectors
from tests.bench.figures import Figure, figure, point
from tests.bench.streams_peer import cost_of

WINDOWS = (100, 1_000, 10_000, 20_000)
# A hundred (`--users 100`) take longer than the few minutes that all of it may.
USERS, USERS_WINDOW, PROCESSES = 20, 10_000, 2
# Peers at once are fewer: two processes make one after the other, so that a rate needs no more.
PEER_USERS = 6
CHANNEL = "bench"
WHOLE, NEW, NEW_ELSEWHERE = "whole", "1 % new", "1 % new, in a fresh process"
OURS, PEER = "highwater", "script: SELECT, PCA, hdbscan, TF-IDF"
DONE_SECONDS_MAX = 900.0

Measured = dict[tuple[str, str, str, int], list[float]]  # name, system, unit, window -> a value each run
WorkerT = TypeVar("WorkerT", bound=RebuildWorker)


@dataclass
class Bench:
    """The parts, and a channel of insights of which more and more are there."""

    context: ProcessContext
    settings: Settings
    redis: RedisLink
    requests: int = 0
    users: int = 0
    found: Measured = field(default_factory=lambda: defaultdict(list))

    def note(self, name: str, system: str, unit: str, window: int, value: float) -> None:
        """A value of one run."""
        self.found[name, system, unit, window].append(value)

    def worker(self, pool: ClusterPool, window: int, kind: type[WorkerT]) -> WorkerT:
        """A worker whose windows have at most this many insights."""
        settings = replace(self.settings, rebuild_insights_max=window)
        return kind(self.context, settings, load_policy(), self.redis, pool)

    def request(self, user_id: str) -> RebuildRequested:
        """A demand of a user."""
        return RebuildRequested(
            user_id=user_id, trigger="manual", forced=True, planned_at=self.context.clock(), tick_position="", pending=0,
            plan="free", last_active_at=None, last_clustered_at=None, last_checked_at=None, last_enqueued_at=None,
            policy_hash="", is_changed=False, demanded_revision=0,
        )  # fmt: skip

    async def user(self) -> str:
        """Another one, subscribed to the channel."""
        self.users += 1
        user_id = f"user-{self.users}"
        now = to_datetime(self.context.clock())
        await self.context.pool.execute(
            "INSERT INTO user_stats (user_id, last_active_at) VALUES ($1, $2)", user_id, now
        )
        await self.context.pool.execute("INSERT INTO subscriptions VALUES ($1, $2, true, 1)", user_id, CHANNEL)
        return user_id

    async def head(self, seq: int) -> None:
        """The channel has this many insights from now on."""
        await self.context.pool.execute("UPDATE channels SET current_seq = $1", seq)

    async def rebuild(self, worker: RebuildWorker, user_id: str) -> float:
        """One request as the consumer framework hands it over; the seconds until it is stored."""
        self.requests += 1
        event = Event(Record(REBUILD_REQUESTED, 0, self.requests, 1, b"", b"", []), self.request(user_id))
        began = monotonic_seconds()
        prepared = await worker.prepare([event])
        async with self.context.pool.acquire() as tx, tx.transaction():
            await worker.apply(tx, [event], prepared)
        await worker.settle(prepared)
        seconds = monotonic_seconds() - began
        _check(prepared)
        return seconds


def _check(works: Sequence[Work]) -> None:
    """A rebuild that was skipped took no time."""
    for work in works:
        assert (work.outcome, work.reason) == ("rebuilt", ""), f"{work.outcome} {work.reason}"


# -- insights ----------------------------------------------------------------------------------------------------------


async def _store_insights(context: ProcessContext, count: int) -> None:
    """The latest of the data in one channel, a second apart, the last one now; none counts yet."""
    texts = [line["text"] for line in data.insights()][-count:]
    vectors = latest_vectors(count)
    now_ms = context.clock()
    records = (
        (
            *(f"insight-{n}", CHANNEL, n + 1, at := to_datetime(now_ms - (count - n) * 1_000), at),
            *(texts[n % len(texts)], vectors[n].astype("<f4").tobytes(), UNFITTED_ID, 0, n),
        )
        for n in range(count)
    )
    names = (
        *("insight_id", "channel_id", "seq", "ts", "arrived_at"),
        *("text", "embedding", "embedding_model", "source_partition", "source_offset"),
    )
    await context.pool.execute("INSERT INTO channels (channel_id, current_seq) VALUES ($1, 0)", CHANNEL)
    async with context.pool.acquire() as connection:
        await connection.copy_records_to_table("insights", records=records, columns=names)
        await connection.execute("ANALYZE insights")


# -- a rebuild by itself -------------------------------------------------------------------------------------------------


async def _started(pool: ClusterPool) -> ClusterPool:
    """The pool with a process that has loaded what it takes."""
    sample = np.sin(np.arange(32 * 384, dtype=np.float32)).reshape(32, 384)
    await pool.run(Window(1, sample, ("sample",) * 32, tuple(map(str, range(32)))))
    return pool


def _cpu_seconds(pool: ClusterPool) -> float:
    """What this process and those of the pool have used."""
    used = [psutil.Process(pid).cpu_times() for pid in (os.getpid(), *pool.process_ids)]
    return sum(one.user + one.system for one in used)


async def _alone(bench: Bench, window: int) -> None:
    """A first version, and two that follow."""
    new = window // 100
    await bench.head(window)
    user_id = await bench.user()
    for kinds in ((WHOLE, NEW), (NEW_ELSEWHERE,)):
        async with ClusterPool() as pool:
            worker = bench.worker(await _started(pool), window, RebuildWorker)
            for kind in kinds:
                if kind != WHOLE:
                    await bench.head(window + (1 if kind == NEW else 2) * new)
                before = _cpu_seconds(pool)
                seconds = await bench.rebuild(worker, user_id)
                bench.note(f"rebuild, {kind}", OURS, "s", window, seconds)
                bench.note(f"rebuild, {kind}", OURS, "CPU s", window, _cpu_seconds(pool) - before)
            if WHOLE in kinds:
                (process,) = pool.process_ids
                bench.note("rebuild, peak memory", OURS, "MB", window, cost_of(process).peak_mb)


async def _peer_alone(bench: Bench, url: str, window: int) -> None:
    """The peer's whole, which is all that it knows."""
    for kind, head in ((WHOLE, window), (NEW, window + window // 100)):
        told = await _told(await _peer(url, head, window))
        bench.note(f"rebuild, {kind}", PEER, "s", window, told["seconds"])
        bench.note(f"rebuild, {kind}", PEER, "CPU s", window, told["cpu_seconds"])


async def _peer(url: str, head: int, window: int, times: int = 1) -> asyncio.subprocess.Process:
    given = (url, CHANNEL, str(head), str(window), str(times))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.rebuild_peer", *given, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )


async def _told(process: asyncio.subprocess.Process) -> dict[str, float]:
    lines, _ = await process.communicate()
    assert process.returncode == 0, f"the peer ended with {process.returncode}"
    told: dict[str, float] = json.loads(lines)
    return told


# -- many users at once -----------------------------------------------------------------------------------------------------


class _Timed(RebuildWorker):
    """Says when each rebuild was stored, and what it took by itself."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.began = 0.0
        self.waited: list[float] = []
        self.took: list[float] = []

    async def prepare(self, events: Sequence[Event[RebuildRequested]]) -> list[Work]:
        """As ours, noted."""
        self.began = self.began or monotonic_seconds()
        return await super().prepare(events)

    async def settle(self, prepared: Sequence[Work]) -> None:
        """The transaction has ended."""
        await super().settle(prepared)
        _check(prepared)
        self.waited += [monotonic_seconds() - self.began] * len(prepared)
        self.took += [work.seconds for work in prepared]


async def _at_once(bench: Bench, url: str, users: int, window: int) -> None:
    """All users for the first time, then all with 1 % new, by the same two processes."""
    user_ids = [await bench.user() for _ in range(users)]
    async with ClusterPool(PROCESSES) as pool:
        await asyncio.gather(*(_started(pool) for _ in range(PROCESSES)))
        for kind, head in ((WHOLE, window), (NEW, window + window // 100)):
            await bench.head(head)
            before = _cpu_seconds(pool)
            timed = bench.worker(pool, window, _Timed)
            await _until_all_are_stored(bench, timed, user_ids)
            name = f"{users} users at once, {kind}"
            bench.note(f"{name}, rate", OURS, "rebuilds/s", window, users / max(timed.waited))
            bench.note(f"{name}, each", OURS, "CPU s", window, (_cpu_seconds(pool) - before) / users)
            for percent in (50, 99):
                bench.note(
                    f"{name}, waited, p{percent}", OURS, "s", window, float(np.percentile(timed.waited, percent))
                )
                bench.note(f"{name}, made in, p{percent}", OURS, "s", window, float(np.percentile(timed.took, percent)))
    share = PEER_USERS // PROCESSES
    peers = [await _peer(url, window, window, share) for _ in range(PROCESSES)]
    told = [await _told(process) for process in peers]
    for kind in (WHOLE, NEW):
        rate = sum(1 / one["seconds"] for one in told)
        bench.note(f"{users} users at once, {kind}, rate", PEER, "rebuilds/s", window, rate)


async def _until_all_are_stored(bench: Bench, timed: _Timed, user_ids: Sequence[str]) -> None:
    producer = AsyncProducer(bench.context.client, client_id="bench", linger_ms=20)
    acks = []
    for user_id in user_ids:
        request = bench.request(user_id)
        key = TOPICS[REBUILD_REQUESTED].key_of(request)
        acks.append(
            await producer.enqueue(REBUILD_REQUESTED, bench.context.codec.encode(REBUILD_REQUESTED, request), key=key)
        )
    await asyncio.gather(*acks)
    await producer.close()
    stop = asyncio.Event()
    running = asyncio.create_task(BatchConsumer(timed, bench.context).run(stop))
    deadline = monotonic_seconds() + DONE_SECONDS_MAX
    while len(timed.waited) < len(user_ids):
        if running.done():
            running.result()
        assert monotonic_seconds() < deadline, f"{len(timed.waited)} of {len(user_ids)} after {DONE_SECONDS_MAX:.0f} s"
        await asyncio.sleep(0.05)
    stop.set()
    await running


# -- all --------------------------------------------------------------------------------------------------------------------


async def _run(stack: LocalStack, runs: int, windows: Sequence[int], users: int, users_window: int) -> Measured:
    found = stack.addresses
    given = {
        "KAFKA_BOOTSTRAP_SERVERS": found.kafka,
        "SCHEMA_REGISTRY_URL": found.schema_registry,
        "DATABASE_URL": found.database,
        "REDIS_URL": found.redis,
        "HIGHWATER_REBUILD_PROCESSES": str(PROCESSES),
    }
    settings = read_settings({name: value or "" for name, value in given.items()})
    client = settings.kafka_client()
    registry, admin = Registry(settings.registry_access()), Admin(client)
    redis = await open_redis(found.redis)
    async with await open_pool(settings.database) as pool:
        await migrate(pool)
        await admin.ensure_topics(all_topics(), replication_factor=1)
        await registry.register(TOPICS.values())
        context = ProcessContext(pool, client, admin, registry, await registry.codec(), ProductClock())
        largest = max(*windows, users_window if users else 0)
        await _store_insights(context, largest + 2 * (largest // 100))
        settle_heap()  # as a role does
        bench, url = Bench(context, settings, redis), str(found.database)
        for _ in range(runs):
            for window in windows:
                await _alone(bench, window)
                await _peer_alone(bench, url, window)
        if users:
            await _at_once(bench, url, users, users_window)
    await redis.close()
    return bench.found


def run(
    runs: int = 3,
    *,
    windows: Sequence[int] = WINDOWS,
    users: int = USERS,
    users_window: int = USERS_WINDOW,
) -> list[Figure]:
    """The figures, on an embedded stack of the benchmark's own; users at once are measured one time."""
    configure_logging("error", "console")  # figures alone go to standard output
    logging.getLogger("librdkafka").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="highwater-bench-") as folder, LocalStack(Path(folder) / "data") as stack:
        found = asyncio.run(_run(stack, runs, windows, users, users_window))
    figures = [
        point(figure(name, system, unit, values), window, "insights")
        for (name, system, unit, window), values in found.items()
    ]
    return [*figures, figure("rebuild, peak memory, bound", OURS, "MB", [MEMORY_BYTES_MAX / (1 << 20)])]


def _numbers(raw: str) -> tuple[int, ...]:
    return tuple(map(int, raw.split(",")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--windows", type=_numbers, default=WINDOWS)
    parser.add_argument("--users", type=int, default=USERS, help="0: none at once")
    parser.add_argument("--users-window", type=int, default=USERS_WINDOW)
    chosen = parser.parse_args()
    for one_figure in run(chosen.runs, windows=chosen.windows, users=chosen.users, users_window=chosen.users_window):
        print(json.dumps(one_figure))
