"""Watching a job by 1,000 server-sent event streams at once: events a second that arrive, how late, and memory a listener.

The API of the product, alone on the parts of a local stack, beside a plain Starlette server that reads the same stream of the
same Redis with an XREAD BLOCK a listener; both under uvicorn, in turn in every run, while the other one is idle. The events
come from the product's materializer, one batch each, as they do when a job is worked on. A *burst* is 200 of them as fast as
that goes; a *paced* one ten a second, by which lateness is measured: from before the write until a listener has the bytes.
Memory is what the server's process has for itself alone (USS) with its listeners, less what it had before them, once each has
heard an event; of the first run alone, since a process keeps what it once had. The listeners are sockets of this process, which
count bytes and parse nothing; with the servers they share the machine.

    python -m tests.bench.progress [--runs N] [--listeners N]
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import uvloop

from highwater.connectors.jobs.progress import Progress
from highwater.connectors.kafka.records import Event, Record
from highwater.connectors.redis.link import RedisLink, open_redis
from highwater.deploy.local.stack import LocalStack
from highwater.schemas.jobs import PROGRESS
from highwater.streams.clock import ProductClock, to_datetime
from tests.bench.figures import Figure, figure
from tests.bench.http_peers import child, free_port, until_answers

LISTENERS = 1_000
BURST, PACED = 200, 50
PACE_SECONDS = 0.1
SECONDS_MAX = 120.0
# Connections opened at once: the backlog of a listening socket is 128 on many machines.
OPENING_MAX = 100
OURS, PEER = "highwater", "Starlette, XREAD BLOCK a listener"
CLOCK = ProductClock()
_MARK = b"\ndata: "


@dataclass(slots=True)
class System:
    """A server and what was measured of it."""

    port: int
    pid: int
    events_per_second: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    listener_kib: list[float] = field(default_factory=list)


class Tally:
    """What all listeners have heard."""

    def __init__(self) -> None:
        self.heard = 0
        self.wanted = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.at: list[float] = []
        self.is_timed = False

    def want(self, count: int, *, is_timed: bool = False) -> None:
        """From now on wait for this many."""
        self.heard, self.wanted, self.is_timed, self.at = 0, count, is_timed, []
        self.done = asyncio.get_running_loop().create_future()

    def add(self, count: int) -> None:
        """This many more were received."""
        self.heard += count
        if self.is_timed:
            self.at += [time.perf_counter()] * count
        if self.heard >= self.wanted and not self.done.done():
            self.done.set_result(None)

    async def all(self) -> None:
        """Wait until all were heard."""
        try:
            await asyncio.wait_for(asyncio.shield(self.done), SECONDS_MAX)
        except TimeoutError:
            raise AssertionError(f"{self.heard} of {self.wanted} events arrived in {SECONDS_MAX:.0f} s") from None


class Listener(asyncio.Protocol):
    """A socket that counts events."""

    def __init__(self, tally: Tally, job_id: str) -> None:
        self._tally = tally
        self._job_id = job_id
        self._tail = b""

    def connection_made(self, transport: Any) -> None:
        """Ask."""
        request = f"GET /api/jobs/{self._job_id}/events HTTP/1.1\r\nHost: bench\r\nAccept: text/event-stream\r\n\r\n"
        transport.write(request.encode())

    def data_received(self, data: bytes) -> None:
        """Count, a mark that is cut in two as well."""
        seen = self._tail + data
        count = seen.count(_MARK)
        self._tail = seen[-(len(_MARK) - 1) :]
        if count:
            self._tally.add(count)


def run(runs: int = 3, listeners: int = LISTENERS) -> list[Figure]:
    """All figures; the systems' runs alternate."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # inherited by the servers
    with (
        tempfile.TemporaryDirectory(prefix="highwater-progress-") as folder,
        LocalStack(Path(folder) / "parts") as parts,
        _systems(Path(folder), parts) as (systems, environment),
    ):
        uvloop.run(_measured(systems, environment, runs, listeners))
    found: list[Figure] = []
    for name, system in systems.items():
        found += [
            figure(f"events to {listeners} listeners", name, "events/s", system.events_per_second),
            figure("CPU of the server", name, "us an event", system.cpu_us),
            figure("lateness p50", name, "ms", system.p50_ms),
            figure("lateness p99", name, "ms", system.p99_ms),
            figure("memory", name, "KiB a listener", system.listener_kib),
        ]
    return found


@contextlib.contextmanager
def _systems(folder: Path, parts: LocalStack) -> Iterator[tuple[dict[str, System], dict[str, str]]]:
    """Both servers, ready."""
    port, peer_port = free_port(), free_port()
    named = {name: address or "" for name, address in parts.addresses.by_name().items()}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HIGHWATER_")} | {
        "KAFKA_BOOTSTRAP_SERVERS": named["kafka"],
        "SCHEMA_REGISTRY_URL": named["schema_registry"],
        "DATABASE_URL": named["database"],
        "REDIS_URL": named["redis"],
        "HIGHWATER_PORT": str(port),
        "HIGHWATER_DATA_DIR": str(folder / "data"),
    }
    program = [sys.executable, "-m", "highwater.api.cli.main"]
    subprocess.run([*program, "init"], env=environment, check=True, capture_output=True)
    with (
        child([*program, "api"], folder / "api.log", environment) as pid,
        child([sys.executable, "-m", "tests.bench.sse_peer", str(peer_port)], folder / "peer.log", environment) as peer,
    ):
        until_answers(f"http://127.0.0.1:{port}/readyz", folder / "api.log")
        until_answers(f"http://127.0.0.1:{peer_port}/readyz", folder / "peer.log")
        yield {OURS: System(port, pid), PEER: System(peer_port, peer)}, environment


async def _measured(systems: dict[str, System], environment: dict[str, str], runs: int, listeners: int) -> None:
    link = await open_redis(environment["REDIS_URL"])
    database = await asyncpg.create_pool(environment["DATABASE_URL"], min_size=1, max_size=2)
    try:
        for _ in range(runs):
            for system in systems.values():
                await _measure(system, Writer(database, link), listeners)
    finally:
        await database.close()
        await link.close()


class Writer:
    """A job that is worked on."""

    def __init__(self, database: asyncpg.Pool, link: RedisLink) -> None:
        self.job_id = str(uuid.uuid4())
        self._database = database
        self._progress = Progress(database, link)
        self._seq = 0

    async def begin(self) -> None:
        """It is there."""
        now = to_datetime(CLOCK())
        await self._database.execute(
            "INSERT INTO jobs (job_id, kind, organization_id, user_id, args, status, arrived_ms, position, caused_by, "
            "created_at, updated_at) VALUES ($1, 'generation', 'bench', 'bench', '{}', 'running', 1, 'p', 'p', $2, $2)",
            self.job_id, now,
        )  # fmt: skip

    async def step(self) -> None:
        """It publishes one event."""
        self._seq += 1
        value = {
            "job_id": self.job_id, "organization_id": "bench", "user_id": "bench", "seq": self._seq,
            "event_type": "slide_completed", "slide_number": self._seq, "slide_id": f"s{self._seq}",
            "slide_title": "What the log remembers, and for how long", "progress_pct": min(99, self._seq // 3),
            "error_message": None, "at": CLOCK(),
        }  # fmt: skip
        await self._progress.prepare([Event(Record(PROGRESS, 0, self._seq, 0, None, b"", []), value)])


async def _measure(system: System, writer: Writer, listeners: int) -> None:
    """Memory, a burst and a paced one of a system."""
    process = psutil.Process(system.pid)
    await writer.begin()
    tally = Tally()
    async with _listening(system, writer, tally, listeners, process):
        tally.want(BURST * listeners)
        cpu, began = _cpu_seconds(process), time.perf_counter()
        for _ in range(BURST):
            await writer.step()
        await tally.all()
        seconds = time.perf_counter() - began
        system.events_per_second.append(BURST * listeners / seconds)
        system.cpu_us.append((_cpu_seconds(process) - cpu) * 1_000_000 / (BURST * listeners))
        await _paced(system, writer, tally, listeners)


@contextlib.asynccontextmanager
async def _listening(
    system: System, writer: Writer, tally: Tally, listeners: int, process: psutil.Process
) -> AsyncIterator[None]:
    """N listeners, each of which has received the first event; notes their memory."""
    loop = asyncio.get_running_loop()
    before = process.memory_full_info().uss
    transports: list[asyncio.BaseTransport] = []
    try:
        await writer.step()
        tally.want(listeners)
        for first in range(0, listeners, OPENING_MAX):
            opening = [
                loop.create_connection(lambda: Listener(tally, writer.job_id), "127.0.0.1", system.port)
                for _ in range(min(OPENING_MAX, listeners - first))
            ]
            transports += [transport for transport, _ in await asyncio.gather(*opening)]
        await tally.all()
        if not system.listener_kib:
            system.listener_kib.append((process.memory_full_info().uss - before) / 1024 / listeners)
        yield
    finally:
        for transport in transports:
            transport.close()
        await _until_idle(process)


async def _until_idle(process: psutil.Process) -> None:
    """Wait until the server has closed its listeners' sockets."""
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        if sum(one.status == psutil.CONN_ESTABLISHED for one in process.net_connections("tcp")) < OPENING_MAX:
            return
        await asyncio.sleep(0.2)  # the pause between two looks


async def _paced(system: System, writer: Writer, tally: Tally, listeners: int) -> None:
    late: list[float] = []
    for _ in range(PACED):
        tally.want(listeners, is_timed=True)
        began = time.perf_counter()
        await writer.step()
        await tally.all()
        late += [(at - began) * 1000 for at in tally.at]
        await asyncio.sleep(max(0.0, PACE_SECONDS - (time.perf_counter() - began)))
    cuts = statistics.quantiles(late, n=100)
    system.p50_ms.append(cuts[49])
    system.p99_ms.append(cuts[98])


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--listeners", type=int, default=LISTENERS)
    arguments = parser.parse_args()
    for one in run(arguments.runs, arguments.listeners):
        print(json.dumps(one))
