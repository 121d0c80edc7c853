"""What a run of the query pipeline costs beside its language model, with DBOS running the same five steps on the same PostgreSQL.

Ours is the whole product with all its roles as `highwater up` runs it, the built-in model answering in its process; users are
distinct, so that no run waits for an earlier one. Two measures: a *burst* (all runs submitted at once; runs a second to the
last COMPLETED and to the last memory; processor time of every process, PostgreSQL and Kafka included) and a *closed loop* (N
in flight, the next when one is completed; latency).

Ours has two latencies: from producing the event to `completed_at`, which is a commit short of stored, and until COMPLETED was
read from the log, which is a commit, the outbox and the log later. DBOS's ends when its fourth step is recorded, in the
calling process. What `tests/bench/dbos_peer.py` leaves out (log, order of users, timeline, captures, reads) is left out in
its favour. The systems run one after the other, ours stopped before DBOS begins: idle roles query PostgreSQL all the time.

    python -m tests.bench.pipeline [--runs N] [--burst RUNS] [--samples RUNS] [--in-flight 1,32]

`dbos` runs in the interpreter that HW_DBOS_PYTHON names, else in this one. 3.2 can share our environment; later ones want a
croniter that faust's mode-streaming refuses and need an environment of their own (with orjson).
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import numpy as np
import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from highwater.streams.clock import ProductClock
from tests.bench import posting
from tests.bench.figures import Figure, figure
from tests.bench.http_peers import CHECKOUT, STOP_SECONDS_MAX
from tests.bench.league_stack import league_product
from tests.product import Product

BURST, SAMPLES, IN_FLIGHT = 2_000, 500, (1, 32)
# Runs before the first that counts: connections, plans and imports.
WARM = 64
# A system that is not finished by then is reported with its progress.
SECONDS_MAX = 120.0
LOOK_SECONDS = 0.1
# What follows the last memory (outbox, agent, timeline) belongs to the price of the runs and is waited for.
SETTLE_SECONDS = 1.0
SUBMITTED, STAGE = "queries.query-submitted", "queries.pipeline-stage"
PEER_DATABASE = "dbos_bench"
MIGRATION = CHECKOUT / "connectors" / "postgres" / "migrations" / "0008_queries.sql"
INSTALL = (
    "the peer is left out: pip install 'highwater[bench]', or `pip install dbos orjson` where HW_DBOS_PYTHON points"
)
OURS = "highwater"
CLOCK = ProductClock()


class TooSlowError(Exception):
    """A measure was not finished in time; the progress is reported, and the system is left there."""


@dataclass(slots=True)
class Series:
    """The values of one figure, run by run."""

    unit: str
    values: list[float] = field(default_factory=list)


class Results:
    """Figures in the order in which they were first reported."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Series] = {}

    def add(self, name: str, system: str, unit: str, value: float) -> None:
        """One value of a figure."""
        self._series.setdefault((name, system), Series(unit)).values.append(value)

    def figures(self) -> list[Figure]:
        """All of them."""
        return [figure(name, system, one.unit, one.values) for (name, system), one in self._series.items()]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    runs: int
    burst: int = BURST
    samples: int = SAMPLES
    in_flight: tuple[int, ...] = IN_FLIGHT


def queries(count: int) -> list[str]:
    """Distinct questions as long as people ask them."""
    parts = ("the controller", "log compaction", "the group coordinator", "the schema registry", "tiered storage")
    return [
        f"Which changes of {parts[i % len(parts)]} were made since March 2024, and did number {i} of them break any client?"
        for i in range(count)
    ]


def run(
    runs: int = 3, *, burst: int = BURST, samples: int = SAMPLES, in_flight: Sequence[int] = IN_FLIGHT
) -> list[Figure]:
    """All figures. Without `dbos`, ours alone."""
    sizes, results = Sizes(runs, burst, samples, tuple(in_flight)), Results()
    with _only_parts() as (product, stop):
        with contextlib.suppress(TooSlowError):
            _ours(product, sizes, results)
        stop()
        if _is_peer_installed():
            _peer(product, sizes, results)
        else:
            print(INSTALL, file=sys.stderr)
    return results.figures()


@contextlib.contextmanager
def _only_parts() -> Iterator[tuple[Product, Callable[[], None]]]:
    """The product without a sample, and how to stop its roles and keep its PostgreSQL."""
    # A service configured in the caller's shell would be asked otherwise, and paid.
    with league_product(before=lambda product: _forget_services(product.environment)) as product:
        yield product, lambda: _stop_roles(product)


def _forget_services(environment: dict[str, str]) -> None:
    for name in [name for name in environment if name.startswith(("LLM_", "EMBEDDINGS_"))]:
        del environment[name]


def _stop_roles(product: Product) -> None:
    product.cli("down")


# -- ours ----------------------------------------------------------------------------------------------------------------


def _ours(product: Product, sizes: Sizes, results: Results) -> None:
    log = _Log(product)
    log.burst(queries(WARM))
    _archived(product, WARM, time.monotonic() + SECONDS_MAX)
    _settled(product)
    try:
        for _ in range(sizes.runs):
            for in_flight in sizes.in_flight:
                _loop_ours(log, product, sizes.samples, in_flight, results)
                _settled(product)
            _burst_ours(f"{OURS}, from the log", log.burst, product, sizes.burst, results)
            _burst_ours(f"{OURS}, POST /api/query", _poster(product, results), product, sizes.burst, results)
    finally:
        log.close()


class _Log:
    """Produces submissions and reads their outcomes."""

    def __init__(self, product: Product) -> None:
        self._codec = product.codec()
        self._producer = Producer({**product.producer_config(), "acks": "all", "linger.ms": 0})
        self._product = product
        self._consumer = Consumer(
            {"bootstrap.servers": product.environment["KAFKA_BOOTSTRAP_SERVERS"], "group.id": "bench"}
        )
        self._read_from_here()

    def close(self) -> None:
        """Close the connection to the broker."""
        self._producer.flush(10)
        self._consumer.close()

    def burst(self, asked: Sequence[str]) -> None:
        """Submit all at once; returns when the broker has them."""
        for query in asked:
            self._submit(query)
        assert self._producer.flush(60) == 0, "the broker did not take the submissions"

    def loop(self, asked: Sequence[str], in_flight: int) -> dict[str, tuple[int, float]]:
        """Submit the next when one is completed: by run, when it was submitted (ms since 1970) and ms until that was read."""
        self._read_from_here()
        left, pending, found = iter(asked), dict[str, tuple[int, float]](), dict[str, tuple[int, float]]()
        deadline = time.monotonic() + SECONDS_MAX

        def submit_next() -> None:
            query = next(left, None)
            if query is not None:
                began = CLOCK(), time.monotonic()
                pending[self._submit(query)] = began

        for _ in range(in_flight):
            submit_next()
        while pending and time.monotonic() < deadline:
            run_id = self._completed()
            if run_id in pending:
                submitted_ms, began = pending.pop(run_id)
                found[run_id] = submitted_ms, (time.monotonic() - began) * 1000
                submit_next()
        return found

    def _submit(self, query: str) -> str:
        run_id, user_id = str(uuid.uuid4()), str(uuid.uuid4())
        event = {"request_id": run_id, "user_id": user_id, "query": query, "ts": CLOCK()}
        self._producer.produce(SUBMITTED, self._codec.encode(SUBMITTED, event), key=user_id)
        self._producer.poll(0)
        return run_id

    def _completed(self) -> str:
        message = self._consumer.poll(0.5)
        if message is None or message.error() is not None:
            return ""
        event = self._codec.decode(STAGE, message.value())
        return str(event["id"]) if event["status"] == "COMPLETED" else ""

    def _read_from_here(self) -> None:
        self._consumer.assign([TopicPartition(STAGE, p, end) for p, end in self._product.ends(STAGE).items()])


def _loop_ours(log: _Log, product: Product, samples: int, in_flight: int, results: Results) -> None:
    found = log.loop(queries(samples), in_flight)
    rows = product.sql(
        "SELECT id::text, extract(epoch FROM completed_at) * 1000 AS ms FROM pipeline_runs WHERE id = ANY ($1::uuid[])",
        list(found),
    )
    decided = [float(row["ms"]) - found[row["id"]][0] for row in rows if row["ms"] is not None]
    _latencies(results, f"{OURS}, until completed_at", in_flight, decided)
    _latencies(results, f"{OURS}, until read from the log", in_flight, [ms for _, ms in found.values()])
    _check_reached(f"{OURS}, {in_flight} in flight", len(found), samples)


def _burst_ours(
    system: str,
    submit: Callable[[Sequence[str]], None],
    product: Product,
    count: int,
    results: Results,
) -> None:
    groups = _groups(product)
    before = _stored(product)
    cpu = {name: _cpu_seconds(pids) for name, pids in groups.items()}
    began_ms, deadline = CLOCK(), time.monotonic() + SECONDS_MAX
    submit(queries(count))
    if _archived(product, before + count, deadline):
        _settled(product)
    spent = {name: _cpu_seconds(pids) - cpu[name] for name, pids in groups.items()}
    row = product.sql(
        "SELECT count(r.completed_at) AS completed, extract(epoch FROM max(r.completed_at)) * 1000 AS last, "
        "count(m.id) AS archived, extract(epoch FROM max(m.created_at)) * 1000 AS stored "
        "FROM pipeline_runs AS r LEFT JOIN lsm_storage AS m ON m.pipeline_run_id = r.id "
        "WHERE r.created_at >= to_timestamp($1::float8 / 1000)",
        began_ms,
    )[0]
    _burst_figures(results, system, count, began_ms, (row["completed"], row["last"]), (row["archived"], row["stored"]))
    _cpu_figures(results, system, row["archived"], spent)
    _check_reached(system, row["archived"], count)


def _poster(product: Product, results: Results) -> Callable[[Sequence[str]], None]:
    url = f"{str(product.http.base_url).rstrip('/')}/api/query"

    def submit(asked: Sequence[str]) -> None:
        bodies = [json.dumps({"user_id": str(uuid.uuid4()), "query": query}).encode() for query in asked]
        cpu_seconds = time.process_time()
        posted = asyncio.run(posting.post_all(url, bodies, seconds_max=SECONDS_MAX))
        cpu_seconds = time.process_time() - cpu_seconds
        assert posted.others == 0, f"{posted.others} of {len(posted.took_ms)} queries were not taken"
        for name, share in (("p50", 50), ("p99", 99)):
            figure_name = f"POST /api/query {name}, {posting.CONNECTIONS} connections"
            results.add(figure_name, OURS, "ms", float(np.percentile(posted.took_ms, share)))
        results.add("CPU, the client of POST", OURS, "ms a run", cpu_seconds * 1000 / len(posted.took_ms))

    return submit


def _stored(product: Product) -> int:
    return int(product.sql("SELECT count(*) FROM lsm_storage")[0][0])


def _archived(product: Product, wanted: int, deadline: float) -> bool:
    """Wait until N memories are stored; False when the time was up."""
    while _stored(product) < wanted:
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def _settled(product: Product) -> None:
    """Wait until the outbox is empty and the timeline publishes nothing more."""
    deadline = time.monotonic() + SECONDS_MAX
    seen: Any = None
    while time.monotonic() < deadline:
        row = product.sql("SELECT (SELECT count(*) FROM outbox), (SELECT count(*) FROM run_events)")[0]
        if row[0] == 0 and tuple(row) == seen:
            return
        seen = tuple(row)
        time.sleep(SETTLE_SECONDS)


def _groups(product: Product) -> dict[str, list[int]]:
    """The process ids of the product by part: roles as `status` names them, and what lies beneath them."""
    # `init` gets its former id
    running = [part for part in product.status()["parts"] if part.get("pid") and part["state"] == "up"]
    roles = {str(part["name"]): [int(part["pid"])] for part in running}
    return roles | _parts(product)


def _parts(product: Product) -> dict[str, list[int]]:
    pids = {name: product.parts.process(name).pid for name in product.parts.names}
    return {name: [pid] for name, pid in pids.items() if pid is not None}


# -- DBOS ----------------------------------------------------------------------------------------------------------------


def _is_peer_installed() -> bool:
    command = [_peer_python(), "-c", "import dbos, orjson"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _peer_python() -> str:
    return os.environ.get("HW_DBOS_PYTHON") or sys.executable


class _Process:
    """A process of `dbos_peer.py`."""

    def __init__(self, url: str, executor: str, folder: Path) -> None:
        env = {
            **os.environ,
            "PEER_DATABASE": url.replace("postgresql://", "postgresql+psycopg://"),
            "PEER_EXECUTOR": executor,
            "PYTHONPATH": str(CHECKOUT),
        }
        self._log = folder / f"{executor}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [_peer_python(), "-m", "tests.bench.dbos_peer"],
                env=env, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self.pid = self._process.pid

    def send(self, **command: Any) -> None:
        """Give it something to do."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return its outcome. It bounds its work itself; one that has ended answers with the end of its log."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise AssertionError(f"DBOS ended: {self._log.read_text(encoding='utf-8', errors='replace')[-2000:]}")

    def end(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _peer(product: Product, sizes: Sizes, results: Results) -> None:
    asyncio.run(_make_database(product.environment["DATABASE_URL"]))
    url = product.environment["DATABASE_URL"].rsplit("/", 1)[0] + f"/{PEER_DATABASE}"
    postgres = _parts(product).get("database", [])
    with tempfile.TemporaryDirectory(prefix="highwater-dbos-") as folder:
        for count in (1, 2):
            processes: list[_Process] = []
            try:
                for i in range(count):
                    processes.append(_Process(url, f"peer-{count}-{i}", Path(folder)))
                    processes[-1].answer()  # one after the other: the first makes its tables
                with contextlib.suppress(TooSlowError):
                    _measure_peer(_Peer(processes, url, postgres), sizes, results)
            finally:
                for process in processes:
                    process.end()


@dataclass(frozen=True, slots=True)
class _Peer:
    """DBOS as it runs."""

    processes: Sequence[_Process]
    url: str
    postgres: Sequence[int]

    @property
    def name(self) -> str:
        """As figures name it."""
        return "DBOS" if len(self.processes) == 1 else f"DBOS, {len(self.processes)} processes"

    def groups(self) -> dict[str, list[int]]:
        """Its process ids."""
        return {"workers": [process.pid for process in self.processes], "database": list(self.postgres)}


def _measure_peer(peer: _Peer, sizes: Sizes, results: Results) -> None:
    """One process: everything. Several: bursts alone, as a latency is that of one run."""
    for is_queued in (False, True):
        _burst_of(peer, WARM, is_queued=is_queued)
    for _ in range(sizes.runs):
        for is_queued, how in ((False, "started directly"), (True, "from its queue")):
            system = f"{peer.name}, {how}"
            for in_flight in sizes.in_flight if len(peer.processes) == 1 else ():
                found = _loop_of(peer, sizes.samples, in_flight, is_queued=is_queued)
                _latencies(results, system, in_flight, found)
                _check_reached(f"{system}, {in_flight} in flight", len(found), sizes.samples)
            cpu = {name: _cpu_seconds(pids) for name, pids in peer.groups().items()}
            began_ms, told = _burst_of(peer, sizes.burst, is_queued=is_queued)
            spent = {name: _cpu_seconds(pids) - cpu[name] for name, pids in peer.groups().items()}
            completed, archived = told["completed"], told["archived"]
            last = (len(completed), max(completed, default=0)), (len(archived), max(archived, default=0))
            _burst_figures(results, system, sizes.burst, began_ms, *last)
            _cpu_figures(results, system, len(archived), spent)
            _check_reached(system, len(archived), sizes.burst)


def _loop_of(peer: _Peer, samples: int, in_flight: int, *, is_queued: bool) -> list[float]:
    process = peer.processes[0]
    command = {"in_flight": in_flight, "queries": queries(samples), "seconds_max": SECONDS_MAX}
    before = asyncio.run(_memories(peer.url))
    process.send(do="loop", is_queued=is_queued, **command)
    found: list[float] = process.answer()["latencies_ms"]
    _until_memories(peer.url, before + len(found), time.monotonic() + SECONDS_MAX)
    process.send(do="told")  # records of the loop do not belong to the next burst
    process.answer()
    return found


def _burst_of(peer: _Peer, count: int, *, is_queued: bool) -> tuple[int, dict[str, list[int]]]:
    """Each process submits its share; when that began, and when runs were completed and archived, in ms since 1970."""
    asked, share = queries(count), len(peer.processes)
    before, deadline = asyncio.run(_memories(peer.url)), time.monotonic() + SECONDS_MAX
    for i, process in enumerate(peer.processes):
        process.send(do="burst", is_queued=is_queued, queries=asked[i::share], seconds_max=SECONDS_MAX)
    began = [process.answer()["began_ms"] for process in peer.processes]
    _until_memories(peer.url, before + count, deadline)
    time.sleep(LOOK_SECONDS)  # the memory is stored a moment before its step is recorded
    told: dict[str, list[int]] = {"completed": [], "archived": []}
    for process in peer.processes:
        process.send(do="told")
        for name, moments in process.answer().items():
            told[name] += moments
    return min(began), told


def _peer_tables() -> list[str]:
    """The statements that make the tables of runs and of memories with their indexes, as the product has them."""
    text = re.sub(r"--[^\n]*", "", MIGRATION.read_text(encoding="utf-8").split("INSERT INTO system_prompts")[0])
    wanted = re.compile(r"\s*CREATE (TABLE|INDEX)\b.*?\b(pipeline_runs|lsm_storage)\b", re.DOTALL)
    return [statement for statement in text.split(";") if wanted.match(statement.split("(")[0])]


async def _make_database(url: str) -> None:
    """A database of the peer's own with the tables of runs and memories as the product has them."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"CREATE DATABASE {PEER_DATABASE}")
    finally:
        await connection.close()
    connection = await asyncpg.connect(url.rsplit("/", 1)[0] + f"/{PEER_DATABASE}")
    try:
        for statement in _peer_tables():
            await connection.execute(statement)
    finally:
        await connection.close()


async def _memories(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM lsm_storage"))
    finally:
        await connection.close()


def _until_memories(url: str, wanted: int, deadline: float) -> None:
    while asyncio.run(_memories(url)) < wanted and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)


# -- figures -------------------------------------------------------------------------------------------------------------


def _latencies(results: Results, system: str, in_flight: int, found: Sequence[float]) -> None:
    if found:
        for name, share in (("p50", 50), ("p99", 99)):
            results.add(f"run {name}, {in_flight} in flight", system, "ms", float(np.percentile(found, share)))


def _burst_figures(
    results: Results, system: str, count: int, began_ms: int, completed: tuple[int, Any], archived: tuple[int, Any]
) -> None:
    for what, (reached, last_ms) in (("COMPLETED", completed), ("archived", archived)):
        if reached:
            results.add(f"burst of {count}, {what}", system, "runs/s", reached * 1000 / (float(last_ms) - began_ms))


def _cpu_figures(results: Results, system: str, reached: int, spent: Mapping[str, float]) -> None:
    if reached:
        results.add("CPU, all", system, "ms a run", sum(spent.values()) * 1000 / reached)
        for name, seconds in spent.items():
            results.add(f"CPU, {name}", system, "ms a run", seconds * 1000 / reached)


def _check_reached(system: str, reached: int, wanted: int) -> None:
    """Say what was reached, and leave a system that did not reach what was wanted.

    Raises:
        TooSlowError: it did not; what it still works on would be part of the next measure.
    """
    if reached < wanted:
        print(f"{system}: left after {SECONDS_MAX:.0f} s with {reached} of {wanted} runs", file=sys.stderr)
        raise TooSlowError


def _cpu_seconds(pids: Sequence[int]) -> float:
    """What processes and their children have used, those that ended included: PostgreSQL's are connections."""
    total = 0.0
    for pid in pids:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(one.cpu_times()[:4])
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--burst", type=int, default=BURST)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--in-flight", type=lambda text: tuple(map(int, text.split(","))), default=IN_FLIGHT)
    given = parser.parse_args()
    for one in run(given.runs, burst=given.burst, samples=given.samples, in_flight=given.in_flight):
        print(json.dumps(one))
