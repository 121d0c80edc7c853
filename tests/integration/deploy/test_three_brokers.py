"""The compose file's own commands and environments as processes on three brokers, of which one is killed. On demand."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from highwater.deploy.local.installed import install_root
from highwater.deploy.local.kafka import java_program
from highwater.deploy.local.ports import PortBook
from highwater.schemas.topics import TOPICS, all_topics, dead_letter_topic
from tests.compose import API_KEY, BROKERS, OURS, environment_of
from tests.conftest import Stack
from tests.integration.agents import until
from tests.integration.api_server import make_database
from tests.integration.commands import PROGRAM, run

_REDIS_NUMBER = 14
_START_SECONDS_MAX = 300.0

pytestmark = [
    pytest.mark.skipif("HIGHWATER_THREE_BROKERS" not in os.environ, reason="two minutes; HIGHWATER_THREE_BROKERS=1"),
    pytest.mark.timeout(1_200),
]


@dataclass
class Brokers:
    """Three brokers with the file's settings; only addresses and folders are of this machine."""

    folder: Path
    ports: PortBook
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)

    def port(self, broker: str, inside: str) -> int:
        """The port here of a listener that has the port `inside` in its container."""
        name = f"{broker}-{inside}"
        if name not in self.taken:
            self.taken[name] = self.ports.take(name, 19_200)
        return self.taken[name]

    @property
    def addresses(self) -> str:
        """Where clients in containers reach them."""
        return ",".join(f"127.0.0.1:{self.port(name, '9092')}" for name in BROKERS)

    def start(self) -> None:
        """Format the storage of each, and start it, as the image does."""
        for name in BROKERS:
            own = self.folder / name
            own.mkdir()
            (own / "server.properties").write_text(self._properties(name), encoding="utf-8")
            cluster = BROKERS[name]["environment"]["CLUSTER_ID"]
            arguments = ("format", "-t", cluster, "-c", "server.properties")
            self.processes[name] = self._java(name, "kafka.tools.StorageTool", *arguments)
        for name, formatting in self.processes.items():
            assert formatting.wait() == 0, (self.folder / f"{name}.log").read_text(encoding="utf-8")
            self.processes[name] = self._java(name, "kafka.Kafka", "server.properties")

    def _properties(self, broker: str) -> str:
        """`KAFKA_LOG_DIRS` is `log.dirs`, and so on; the name of a container and its port are a port of this machine."""
        lines = []
        for name, value in BROKERS[broker]["environment"].items():
            if not name.startswith("KAFKA_"):
                continue
            here = value.replace("/var/lib/kafka/data", str(self.folder / broker / "data"))
            for other in BROKERS:
                for inside in ("9092", "9093"):
                    here = here.replace(f"{other}:{inside}", f"127.0.0.1:{self.port(other, inside)}")
            for inside in ("9092", "9093", "9094"):
                here = here.replace(f"//:{inside}", f"//127.0.0.1:{self.port(broker, inside)}")
            outside = BROKERS[broker]["ports"][0].split(":")[1]
            here = here.replace(f"localhost:{outside}", f"localhost:{self.port(broker, '9094')}")
            lines.append(f"{name.removeprefix('KAFKA_').lower().replace('_', '.')}={here}")
        return "\n".join(lines) + "\n"

    def _java(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        options = ["-Xmx320m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command = [java_program(), *options, "-cp", f"{install_root()}/kafka/libs/*", *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder / name, stdout=log, stderr=log)

    def leaders(self) -> dict[str, list[int]]:
        """Of every topic, internal ones too: how many replicas of each partition are in sync, 0 where none leads."""
        metadata = AdminClient({"bootstrap.servers": self.addresses, "log_level": 0}).list_topics(timeout=10)
        return {
            name: [len(one.isrs) if one.leader >= 0 and one.error is None else 0 for one in topic.partitions.values()]
            for name, topic in metadata.topics.items()
        }

    def stop(self) -> None:
        """End those that run."""
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    """The file's three, started."""
    made = Brokers(tmp_path / "kafka", PortBook(tmp_path))
    made.folder.mkdir()
    try:
        made.start()
        until(lambda: is_up(made), "three brokers", _START_SECONDS_MAX)
        yield made
    finally:
        made.stop()
        made.ports.release()
        shutil.rmtree(made.folder)


def is_up(brokers: Brokers) -> bool:
    """Whether all three are in the cluster."""
    try:
        metadata = AdminClient({"bootstrap.servers": brokers.addresses, "log_level": 0}).list_topics(timeout=5)
    except Exception:  # noqa: BLE001 - asked again
        return False
    return len(metadata.brokers) == len(BROKERS)


def test_the_file_runs_as_it_says_and_outlives_a_broker(stack: Stack, brokers: Brokers, tmp_path: Path):
    """`init` and every role start by the file, each is healthy by its own check; one broker is killed: writes go on."""
    there = {
        "KAFKA_BOOTSTRAP_SERVERS": brokers.addresses,
        "SCHEMA_REGISTRY_URL": stack.schema_registry,
        "DATABASE_URL": asyncio.run(make_database(stack.database, "three_brokers")),
        "REDIS_URL": f"{stack.redis.rsplit('/', 1)[0]}/{_REDIS_NUMBER}",
        "REDIS_CACHE_URL": f"{stack.redis.rsplit('/', 1)[0]}/{_REDIS_NUMBER}",
    }
    environments = {
        name: {
            **{key: value for key, value in os.environ.items() if not key.startswith("HIGHWATER_")},
            **environment_of(name),
            **there,
            "HIGHWATER_DATA_DIR": str(tmp_path / name),
        }
        for name in OURS
    }
    ports = {name: brokers.ports.take(name, 19_300) for name in OURS}
    for name, environment in environments.items():
        for setting in {"HIGHWATER_PORT", "HIGHWATER_HEALTH_PORT"} & set(environment):
            environment[setting] = str(ports[name])
    done = run(environments["init"], *OURS["init"]["command"])
    assert done.returncode == 0, done.stderr
    roles = set(OURS) - {"init"}

    def is_healthy(name: str) -> bool:
        return run(environments[name], *OURS[name]["healthcheck"]["test"][2:]).returncode == 0

    with ExitStack() as running:
        processes = {name: running.enter_context(role(name, environments[name], tmp_path)) for name in roles}
        for name in roles:
            until(lambda name=name: is_healthy(name), f"{name} is healthy by the file's check", _START_SECONDS_MAX)
            # Another address of this machine, as another container has: a listener on 127.0.0.1 does not answer there.
            assert httpx.get(f"http://127.0.0.2:{ports[name]}/metrics").status_code == 200

        before = brokers.leaders()
        assert {topic.name for topic in all_topics()} <= set(before)
        assert any(name.endswith("-changelog") for name in before)
        assert "__consumer_offsets" in before
        brokers.processes["kafka-2"].send_signal(signal.SIGKILL)
        headers = {"Authorization": f"Bearer {API_KEY}"}
        api = httpx.Client(base_url=f"http://127.0.0.1:{ports['api']}", headers=headers, timeout=120)
        running.enter_context(api)
        for number in range(100):  # users of every partition
            event = {"user_id": f"user-{number}", "ts": 1_790_000_000_000}
            answer = api.post("/api/events/feeds.user-active", json=event)
            assert answer.is_success, answer.text
        until(lambda: min(map(min, brokers.leaders().values())) >= 2, "every partition has a leader and two in sync")
        assert write_everywhere(brokers) == []
        for name in roles:
            until(lambda name=name: is_healthy(name), f"{name} is healthy on two brokers", _START_SECONDS_MAX)
        assert {name: process.poll() for name, process in processes.items()} == dict.fromkeys(roles)


def write_everywhere(brokers: Brokers) -> list[str]:
    """What was refused of one record with acks=all to each partition of the topics that nobody reads."""
    refused: list[str] = []
    producer = Producer({"bootstrap.servers": brokers.addresses, "acks": "all", "delivery.timeout.ms": 60_000})
    for topic in map(dead_letter_topic, TOPICS.values()):
        for partition in range(topic.partitions):
            producer.produce(
                topic.name,
                b"",
                partition=partition,
                on_delivery=lambda error, record: (
                    error and refused.append(f"{record.topic()}/{record.partition()}: {error}")
                ),
            )
    assert producer.flush(90) == 0
    return refused


@contextmanager
def role(name: str, environment: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A role by the file's command, ended with the test; its log is in the folder."""
    with (folder / f"{name}.log").open("wb") as log:
        command = [*PROGRAM, *OURS[name]["command"]]
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
