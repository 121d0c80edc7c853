"""Rows per second from a topic into PostgreSQL, beside PostgreSQL's own COPY of the same rows in the same run.

The sink's figure holds everything an insight goes through: poll, Avro, checks, embedding, numbering, COPY, outbox,
positions, commit; by one process and by two, which are processes of their own as a role is. The peer's holds the COPY alone, in
transactions of as many rows as the sink's batches: into a table as durable as the sink's with the same indexes, into the same
without indexes, and into a temporary one, which writes no log.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import logging
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import uvloop

from highwater.connectors.feeds.sink_insights import InsightsSink
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.postgres.migrate import migrate
from highwater.connectors.postgres.pool import open_pool
from highwater.deploy.local.stack import LocalStack
from highwater.schemas.json_events import event_from_json
from highwater.schemas.topics import TOPICS, all_topics
from highwater.streams.clock import ProductClock, monotonic_seconds, to_datetime
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.heap import settle_heap
from highwater.streams.settings import read_settings
from highwater.streams.telemetry import configure_logging
from tests import ROOT
from tests.bench.figures import Figure, figure, point
from tests.bench.streams_peer import Cost, cost_of

TOPIC = "feeds.insight-ingested"
SAMPLE = ROOT / "api" / "sample" / "commits.jsonl.gz"
# The log grows from one size to the next, and each run reads all of it.
ROWS = (200, 2_000, 20_000, 200_000)
EMPTY = "TRUNCATE positions, outbox, insights, channels"
WAIT_SECONDS = 120.0
COLUMNS = (
    "insight_id",
    "channel_id",
    "seq",
    "ts",
    "arrived_at",
    "text",
    "embedding",
    "source_partition",
    "source_offset",
)
ONE, TWO = "highwater sink, one process", "highwater sink, two processes"
COPY = "PostgreSQL COPY, same rows and indexes"
# Measured beside it at one size only, and what they leave out: indexes, vectors, the log.
OTHERS_AT = 20_000
WITHOUT_INDEX = "PostgreSQL COPY, same rows, no index"
WITHOUT_VECTORS = "PostgreSQL COPY, no vectors, same indexes"
TEMPORARY = "PostgreSQL COPY, same rows and indexes, temporary table"


class Spent(NamedTuple):
    """Seconds by the clock; of the processor in our processes, and in PostgreSQL's; the most memory of one of our processes."""

    seconds: float
    cpu_seconds: float
    server_cpu_seconds: float
    peak_mb: float | None


def events(path: Path, count: int) -> list[dict[str, Any]]:
    """N real insights; a short file is repeated under fresh ids."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        found = [event_from_json(TOPIC, json.loads(line)) for line in lines]
    rounds = -(-count // len(found))
    many = [{**event, "insight_id": f"{event['insight_id']}-{i}"} for i in range(rounds) for event in found]
    return many[:count]


async def publish(context: ProcessContext, rows: Sequence[dict[str, Any]]) -> None:
    """Send insights to the log, and wait until they are there."""
    producer = AsyncProducer(context.client, client_id="bench", linger_ms=20)
    acks = []
    for i, row in enumerate(rows):
        acks.append(await producer.enqueue(TOPIC, context.codec.encode(TOPIC, row), key=row["channel_id"]))
        if i % 1_000 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*acks)
    await producer.close()


class Bench:
    """A stack and what is measured on it."""

    def __init__(self, context: ProcessContext, environment: Mapping[str, str], server: psutil.Process) -> None:
        self._context = context
        self._environment = environment
        self._server = server
        self.spent: dict[tuple[str, int], list[Spent]] = defaultdict(list)

    async def sink(self, rows: int, processes: int) -> Spent:
        """The log into the table, from the moment that all processes may begin; joining the group is not ingest."""
        await self._context.pool.execute(EMPTY)
        async with self._ready(processes) as started:
            before, server_before, began = _costs(started), self._server_cpu(), monotonic_seconds()
            for process in started:
                assert process.stdin is not None
                process.stdin.write(b"go\n")
            await self._until_stored(rows, started, began + WAIT_SECONDS)
            seconds, after = monotonic_seconds() - began, _costs(started)
            cpu = sum(after[pid].cpu_seconds - before[pid].cpu_seconds for pid in after)
            return Spent(seconds, cpu, self._server_cpu() - server_before, max(cost.peak_mb for cost in after.values()))

    @asynccontextmanager
    async def _ready(self, count: int) -> AsyncIterator[list[asyncio.subprocess.Process]]:
        """N processes that have joined the group."""
        command = [sys.executable, "-m", "tests.bench.ingest_process"]
        pipe, environment = asyncio.subprocess.PIPE, {**os.environ, **self._environment}
        started = [
            await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=ROOT, env=environment)
            for _ in range(count)
        ]
        try:
            for process in started:
                assert process.stdout is not None
                if not await asyncio.wait_for(process.stdout.readline(), WAIT_SECONDS):
                    raise RuntimeError("a process of the benchmark ended before it was ready")
            yield started
        finally:
            for process in started:
                assert process.stdin is not None
                process.stdin.close()
            for process in started:
                await process.wait()

    async def _until_stored(
        self, rows: int, processes: Sequence[asyncio.subprocess.Process], deadline_seconds: float
    ) -> None:
        query = "SELECT COALESCE(sum(current_seq), 0) FROM channels"
        while await self._context.pool.fetchval(query) < rows:
            if any(process.returncode is not None for process in processes):
                raise RuntimeError("a process of the benchmark ended before all was stored")
            if monotonic_seconds() > deadline_seconds:
                raise TimeoutError(f"{rows} rows were not stored within {WAIT_SECONDS:.0f} s")
            await asyncio.sleep(0.01)

    async def copy(self, records: Sequence[tuple[Any, ...]], like: str, kind: str = "TABLE") -> Spent:
        """The rows into a fresh table."""
        async with self._context.pool.acquire() as connection:
            await connection.execute(f"CREATE {kind} peer (LIKE insights {like})")
            server_before, cpu_before, began = self._server_cpu(), time.process_time(), monotonic_seconds()
            for first in range(0, len(records), InsightsSink.batch_max):
                batch = records[first : first + InsightsSink.batch_max]
                await connection.copy_records_to_table("peer", records=batch, columns=COLUMNS)
            seconds, cpu = monotonic_seconds() - began, time.process_time() - cpu_before
            server_cpu = self._server_cpu() - server_before
            await connection.execute("DROP TABLE peer")
        return Spent(seconds, cpu, server_cpu, None)

    def _server_cpu(self) -> float:
        """Seconds of the processor in those of the server's processes that are there now."""
        times = [process.cpu_times() for process in self._server.children()]
        return sum(one.user + one.system for one in times)

    async def measure(self, rows: Sequence[dict[str, Any]], runs: int, *, is_largest: bool) -> None:
        """All that is measured at one size; the systems take turns."""
        count, records = len(rows), _records(rows)
        for _ in range(runs):
            self.spent[ONE, count].append(await self.sink(count, 1))
            self.spent[COPY, count].append(await self.copy(records, "INCLUDING INDEXES"))
            if is_largest:
                self.spent[TWO, count].append(await self.sink(count, 2))
            if count == OTHERS_AT:
                without = [(*record[:6], None, *record[7:]) for record in records]
                self.spent[WITHOUT_INDEX, count].append(await self.copy(records, ""))
                self.spent[WITHOUT_VECTORS, count].append(await self.copy(without, "INCLUDING INDEXES"))
                self.spent[TEMPORARY, count].append(await self.copy(records, "INCLUDING INDEXES", "TEMP TABLE"))


def _costs(processes: Sequence[asyncio.subprocess.Process]) -> dict[int, Cost]:
    return {process.pid: cost_of(process.pid) for process in processes}


def _records(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    vectors = TextEmbedder().embed([row["text"] for row in rows]).astype("<f4")
    return [
        (row["insight_id"], row["channel_id"], i, to_datetime(row["ts"]), to_datetime(row["ts"]), row["text"],
         vectors[i].tobytes(), 0, i)
        for i, row in enumerate(rows)
    ]  # fmt: skip


def figures_of(spent: Mapping[tuple[str, int], Sequence[Spent]]) -> list[Figure]:
    """Rows a second, seconds of the processor a million rows, memory."""
    found = []
    for (system, count), runs in spent.items():
        measured = {
            ("ingest", "rows/s"): [count / one.seconds for one in runs],
            ("ingest, client", "CPU s a million"): [one.cpu_seconds / count * 1e6 for one in runs],
            ("ingest, PostgreSQL", "CPU s a million"): [one.server_cpu_seconds / count * 1e6 for one in runs],
            ("ingest, largest process", "MB"): [one.peak_mb for one in runs if one.peak_mb is not None],
        }
        found += [
            point(figure(name, system, unit, values), count, "rows")
            for (name, unit), values in measured.items()
            if values
        ]
    return found


async def _run(stack: LocalStack, runs: int, sizes: Sequence[int]) -> list[Figure]:
    found = stack.addresses
    given = {
        "KAFKA_BOOTSTRAP_SERVERS": str(found.kafka),
        "SCHEMA_REGISTRY_URL": str(found.schema_registry),
        "DATABASE_URL": str(found.database),
    }
    settings = read_settings(given)
    client = settings.kafka_client()
    registry, admin = Registry(settings.registry_access()), Admin(client)
    async with await open_pool(settings.database) as pool:
        await migrate(pool)
        await admin.ensure_topics(all_topics(), replication_factor=1)
        await registry.register(TOPICS.values())
        context = ProcessContext(pool, client, admin, registry, await registry.codec(), ProductClock())
        # Of the bundled server, whose backends are its children.
        server = psutil.Process(await pool.fetchval("SELECT pg_backend_pid()")).parent()
        assert server is not None
        bench = Bench(context, given, server)
        folder = os.environ.get("HW_DATA")
        rows = events(Path(folder) / "commits.jsonl.gz" if folder else SAMPLE, max(sizes))
        settle_heap()
        sent = 0
        for count in sizes:
            await publish(context, rows[sent:count])
            sent = count
            await bench.measure(rows[:count], runs, is_largest=count == max(sizes))
    return figures_of(bench.spent)


def run(runs: int = 3, *, sizes: Sequence[int] = ROWS) -> list[Figure]:
    """The figures, on an embedded stack of the benchmark's own."""
    configure_logging("error", "console")  # figures alone go to standard output
    logging.getLogger("librdkafka").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="highwater-bench-") as folder, LocalStack(Path(folder) / "data") as stack:
        return uvloop.run(_run(stack, runs, sorted(sizes)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=0, help="One number of rows only.")
    given = parser.parse_args()
    for one_figure in run(given.runs, sizes=(given.rows,) if given.rows else ROWS):
        print(json.dumps(one_figure))
