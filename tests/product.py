"""The product from outside: the command, HTTP, and the parts beneath it, for acceptance tests and tests of failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import asyncpg
import httpx2
import redis
from confluent_kafka import Consumer, TopicPartition

from highwater.api.command.lines import Line, event_of, key_of
from highwater.api.command.publishing import EventPublisher, Publisher
from highwater.connectors.kafka.producer import PARTITIONER
from highwater.connectors.kafka.registry import Registry
from highwater.deploy.local import control
from highwater.deploy.local.stack import LocalStack
from highwater.deploy.local.state import read_state
from highwater.deploy.local.watched import READY_STATES
from highwater.schemas.codec import Codec
from highwater.schemas.topics import TOPICS
from highwater.streams.access import trusts_nobody
from highwater.streams.clock import ProductClock
from highwater.streams.settings import read_settings
from tests.collector import Collector

# Room for a test's rebuilds: two seconds of cooldown instead of minutes, everything else as shipped.
POLICY = """
[plans.free]
novelty_count_min = 50
cooldown_seconds = 2
[plans.pro]
novelty_count_min = 20
cooldown_seconds = 2
"""
# A namespace that ages while a test looks on, and one whose cold chunks are found; everything else as shipped.
NAMESPACES = """
[namespaces.brief]
grace_days = 0
hot_queries_per_day = 1
[namespaces.zeroed]
ttl_mode = "zero_weight"
"""
TICK_SECONDS = 1.0
REDIS_PARTS = ("redis", "redis_cache")


T = TypeVar("T")


def _awaited(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns, run in a thread of its own: a test that drives a browser has a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


class Product:
    """`highwater up --detach` on parts that the test owns, so that each can be stopped, killed and started."""

    def __init__(self, data_dir: Path, parts: LocalStack, collector: Collector | None = None) -> None:
        self.data_dir = data_dir
        self._collector = collector
        self.parts = parts
        data_dir.mkdir(parents=True)
        policy = data_dir / "policy.toml"
        policy.write_text(POLICY, encoding="utf-8")
        namespaces = data_dir / "namespaces.toml"
        namespaces.write_text(NAMESPACES, encoding="utf-8")
        self.clock_file = data_dir / "clock"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HIGHWATER_")}
        self.environment = {
            **clean,
            **parts.addresses.environment(),
            "HIGHWATER_DATA_DIR": str(data_dir),
            "HIGHWATER_PORT": str(self.port),
            "HIGHWATER_POLICY": str(policy),
            "HIGHWATER_NAMESPACES": str(namespaces),
            "HIGHWATER_CLOCK_FILE": str(self.clock_file),
            "HIGHWATER_TICK_SECONDS": str(TICK_SECONDS),
            "HIGHWATER_WINDOW_DAYS": "60",
            "HIGHWATER_EMBEDDER": "builtin",
        }
        if collector is not None:  # only writes that ask for it are traced
            self.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_TRACES_SAMPLER_ARG": "0"}
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30.0, verify=trusts_nobody())

    def __enter__(self) -> Self:
        """Start everything and wait until it is ready."""
        self.cli("up", "--detach", "--no-sample", timeout_seconds=240)
        self.until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything that was started."""
        self.http.close()
        self.cli("down", check=False)

    @property
    def collector(self) -> Collector:
        """Where its spans go; only the product that tests share has one."""
        assert self._collector is not None
        return self._collector

    # -- the command and HTTP ----------------------------------------------------------------------------------------

    def cli(
        self, *arguments: str, stdin: str | None = None, check: bool = True, timeout_seconds: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run `highwater` as a user would."""
        done = subprocess.run(
            [str(Path(sys.executable).parent / "highwater"), *arguments],
            env=self.environment, capture_output=True, text=True, input=stdin, timeout=timeout_seconds, check=False,
        )  # fmt: skip
        if check:
            assert done.returncode == 0, f"highwater {' '.join(arguments)}: {done.stderr[-2000:]}{done.stdout[-2000:]}"
        return done

    def publish(self, topic: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Publish events as `highwater publish` does, in this process: a command takes a second of the processor to start."""
        settings = read_settings(self.environment)
        codec = _awaited(Registry(settings.registry_access()).codec([TOPICS[topic]]))
        publisher = Publisher(settings.kafka_client())
        hand_over = EventPublisher(TOPICS[topic], publisher, codec, ProductClock(settings.clock_file))
        dimensions = settings.embedding_dimensions
        for number, row in enumerate(rows, start=1):
            line = Line(number, json.dumps(row).encode())
            event = event_of(topic, line, shift_ms=0, embedding_dimensions=dimensions)
            hand_over(event, key_of(event, TOPICS[topic].key))
        publisher.flush()

    def empty_redis(self) -> None:
        """FLUSHALL, of both."""
        for name in ("REDIS_URL", "REDIS_CACHE_URL"):
            with redis.Redis.from_url(self.environment[name]) as client:
                client.flushall()

    @contextlib.contextmanager
    def without_redis(self) -> Iterator[None]:
        """Stop both, and start them again."""
        for name in REDIS_PARTS:
            self.parts.stop_part(name)
        try:
            yield
        finally:
            for name in REDIS_PARTS:
                if self.parts.probe(name, 1.0) is not None:
                    self.parts.start_part(name)

    def get(self, path: str, **headers: str) -> httpx2.Response:
        """GET, underscores in header names standing for hyphens."""
        return self.http.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def own_token(self, path: str) -> str:
        """What an answer names as its cause, asked for again as `X-Min-Position`: an answer's own position is always good."""
        cause = self.get(path).headers["x-caused-by"]
        again = self.get(path, X_Min_Position=cause)
        assert (cause != "", again.status_code) == (True, 200), (path, cause, again.text)
        return cause

    def subscribe(self, user: str, channels: Sequence[str], *, plan: str = "pro") -> str:
        """Subscribe an active user; returns the positions of the events."""
        positions: list[str] = []
        for method, path, body in (
            ("PUT", "plan", {"plan": plan}),
            ("POST", "activity", {}),
            ("PUT", "subscriptions", {"channels": list(channels)}),
        ):
            answer = self.http.request(method, f"/api/users/{quote(user, safe='')}/{path}", json=body)
            assert answer.status_code == 202, answer.text
            positions += answer.json()["positions"]
        return ",".join(positions)

    def pending(self, user: str) -> dict[str, Any]:
        """What `/pending` says of a user."""
        answer = self.get(f"/api/users/{quote(user, safe='')}/pending")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    # -- waiting, by condition ---------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
        """Poll until a condition holds; its value."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx2.TransportError):
                found = condition()
                if found:
                    return found
            time.sleep(0.1)  # the pause between two looks, not a wait for a time
        raise AssertionError(f"after {seconds:.0f} s: {what}\n{self.why_not_ready()}")

    def until_ready(self, seconds: float = 120) -> None:
        """Wait until every part and role is ready: they are asked once their supervisor says so, which costs a test nothing."""
        self.until(
            lambda: all(part["state"] in READY_STATES for part in self.parts_state()) and self.status()["ready"],
            "not ready",
            seconds,
        )

    def why_not_ready(self) -> str:
        """What `status` says of parts that are not ready."""
        with contextlib.suppress(AssertionError, ValueError):
            return "; ".join(f"{p['name']}: {p.get('reason')}" for p in self.status()["parts"] if not p.get("ready"))
        return "status does not answer"

    def status(self) -> dict[str, Any]:
        """What `highwater status --json` prints, without the process: waiting tests would take its start ten times a second."""
        return control.status(self.data_dir, self.parts.addresses)

    def parts_state(self) -> list[dict[str, Any]]:
        """What the supervisor last wrote of each part: its number and state, without asking the part itself."""
        state = read_state(self.data_dir)
        assert state is not None
        parts: list[dict[str, Any]] = state["parts"]
        return parts

    def move_clock(self, seconds: float) -> None:
        """Move the product's clock ahead by this much more, and wait until every process has read it."""
        before = float(self.clock_file.read_text(encoding="ascii")) if self.clock_file.exists() else 0.0
        fresh = self.clock_file.with_suffix(".new")
        fresh.write_text(str(before + seconds), encoding="ascii")
        fresh.replace(self.clock_file)
        time.sleep(1.2)  # the clock file is read once a second (streams/clock.py)

    # -- processes ---------------------------------------------------------------------------------------------------

    def role_pid(self, name: str) -> int:
        """Process id of a role."""
        return int(next(part["pid"] for part in self.parts_state() if part["name"] == name))

    def kill(self, name: str) -> None:
        """SIGKILL a role and wait until the supervisor has replaced it."""
        before = self.role_pid(name)
        os.kill(before, signal.SIGKILL)
        self.until(lambda: self.role_pid_or_none(name) not in (None, before), f"{name} was not restarted")

    def role_pid_or_none(self, name: str) -> int | None:
        """Process id of a role, None while it has none."""
        return next((part.get("pid") for part in self.parts_state() if part["name"] == name), None)

    @contextlib.contextmanager
    def frozen(self, *pids: int) -> Any:
        """Processes stopped by SIGSTOP, resumed at the end."""
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    # -- stores and log ----------------------------------------------------------------------------------------------

    def sql(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        """Rows of a statement on PostgreSQL."""

        async def fetch() -> list[asyncpg.Record]:
            connection = await asyncpg.connect(self.environment["DATABASE_URL"])
            try:
                return list(await connection.fetch(statement, *arguments))
            finally:
                await connection.close()

        return _awaited(fetch())

    def records(self, topic: str, starts: Mapping[int, int] | None = None) -> list[Any]:
        """Every record of a topic, or those from given offsets on."""
        consumer = Consumer({"bootstrap.servers": self.environment["KAFKA_BOOTSTRAP_SERVERS"], "group.id": "look"})
        try:
            partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10) for p in partitions}
            first = {p: max(low, (starts or {}).get(p, 0)) for p, (low, _) in ends.items()}
            left = {p: high for p, (_, high) in ends.items() if first[p] < high}
            consumer.assign([TopicPartition(topic, p, first[p]) for p in left])
            found: list[Any] = []
            while left:
                message = consumer.poll(10)
                assert message is not None, f"{topic} ends before {left}"
                assert message.error() is None, message.error()
                # Records after the ends were read are left to the next check.
                if message.offset() < ends[message.partition()][1]:
                    found.append(message)
                if message.offset() + 1 >= left.get(message.partition(), 0):
                    left.pop(message.partition(), None)
            found.sort(key=lambda message: (message.partition(), message.offset()))
            return found
        finally:
            consumer.close()

    def ends(self, topic: str) -> dict[int, int]:
        """One past the last offset of each partition."""
        consumer = Consumer({"bootstrap.servers": self.environment["KAFKA_BOOTSTRAP_SERVERS"], "group.id": "look"})
        try:
            partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in partitions}
        finally:
            consumer.close()

    def codec(self) -> Codec:
        """The codec with the registry's ids."""
        return _awaited(Registry(self.environment["SCHEMA_REGISTRY_URL"]).codec())

    def producer_config(self) -> dict[str, Any]:
        """Settings of a librdkafka producer that places keys as the product does."""
        return {"bootstrap.servers": self.environment["KAFKA_BOOTSTRAP_SERVERS"], "partitioner": PARTITIONER}

    def forget_decisions(self) -> None:
        """Delete the local state of the decision worker."""
        shutil.rmtree(self.data_dir / "faust", ignore_errors=True)
