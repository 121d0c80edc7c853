"""The compose file's three brokers, and its commands with their environments, as processes of this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient

from highwater.deploy.local.installed import install_root
from highwater.deploy.local.kafka import java_program
from highwater.deploy.local.ports import PortBook
from tests.compose import BROKERS, OURS, environment_of, with_defaults
from tests.integration.agents import until
from tests.integration.commands import PROGRAM, run

START_SECONDS_MAX = 300.0
ROLES = tuple(sorted(set(OURS) - {"init"}))


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

    def client(self, user: str) -> dict[str, str]:
        """The settings of a client that logs in as one of the file's users, with the file's default for its password."""
        mechanism = "PLAIN" if user == "highwater" else "SCRAM-SHA-512"
        login = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": "highwater"}
        return {"bootstrap.servers": self.addresses, "security.protocol": "SASL_PLAINTEXT", **login}

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
        for name, value in with_defaults(BROKERS[broker]["environment"]).items():
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
            lines.append(f"{_property_of(name)}={here}")
        return "\n".join(lines) + "\n"

    def _java(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        options = ["-Xmx320m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command = [java_program(), *options, "-cp", f"{install_root()}/kafka/libs/*", *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder / name, stdout=log, stderr=log)

    def leaders(self) -> dict[str, list[int]]:
        """Every topic, internal ones too: how many replicas of each partition are in sync, 0 without a leader."""
        metadata = AdminClient({**self.client("highwater"), "log_level": 0}).list_topics(timeout=10)
        return {
            name: [len(one.isrs) if one.leader >= 0 and one.error is None else 0 for one in topic.partitions.values()]
            for name, topic in metadata.topics.items()
        }

    def stop(self) -> None:
        """End those that run."""
        for process in self.processes.values():
            process.kill()
            process.wait()


def _property_of(variable: str) -> str:
    """The property that the image makes of a variable: `_` is a dot, `___` a hyphen."""
    return variable.removeprefix("KAFKA_").lower().replace("___", "-").replace("_", ".")


def is_up(brokers: Brokers) -> bool:
    """Whether all three are in the cluster."""
    try:
        metadata = AdminClient({**brokers.client("highwater"), "log_level": 0}).list_topics(timeout=5)
    except Exception:  # noqa: BLE001 - asked again
        return False
    return len(metadata.brokers) == len(BROKERS)


@dataclass
class Running:
    """A role of the file that runs here, perhaps one of several."""

    role: str
    number: int
    environment: dict[str, str]
    process: subprocess.Popen[bytes]

    @property
    def name(self) -> str:
        """Its name, also of its log."""
        return f"{self.role}-{self.number}"

    @property
    def port(self) -> int:
        """Where it answers."""
        return int(self.environment["HIGHWATER_PORT" if self.role == "api" else "HIGHWATER_HEALTH_PORT"])

    def is_healthy(self) -> bool:
        """Whether the file's own check says so."""
        return run(self.environment, *OURS[self.role]["healthcheck"]["test"][2:]).returncode == 0


@dataclass
class Installation:
    """The product's services of the file: `there` has the addresses of services, everything else is the file's."""

    brokers: Brokers
    there: Mapping[str, str]
    folder: Path

    def environment(self, role: str, number: int = 1) -> dict[str, str]:
        """The file's, with a folder and a port of its own, as a container has."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("HIGHWATER_")}
        made = {
            **clean,
            **environment_of(role),
            **self.there,
            "HIGHWATER_DATA_DIR": str(self.folder / f"{role}-{number}"),
        }
        port = str(self.brokers.ports.take(f"{role}-{number}", 19_300))
        return made | dict.fromkeys({"HIGHWATER_PORT", "HIGHWATER_HEALTH_PORT"} & set(made), port)

    @contextmanager
    def running(self, count: int = 1) -> Iterator[Sequence[Running]]:
        """`init` run to its end, then N of each role, healthy by the file's check; ended with the block."""
        done = run(self.environment("init"), *OURS["init"]["command"])
        assert done.returncode == 0, done.stderr
        with ExitStack() as stack:
            roles = [stack.enter_context(self._role(name, number)) for name in ROLES for number in range(1, count + 1)]
            for one in roles:
                until(one.is_healthy, f"{one.name} is healthy by the file's check", START_SECONDS_MAX)
            yield roles

    @contextmanager
    def _role(self, name: str, number: int) -> Iterator[Running]:
        """A role by the file's command; its log is in the folder."""
        environment = self.environment(name, number)
        with (self.folder / f"{name}-{number}.log").open("wb") as log:
            command = [*PROGRAM, *OURS[name]["command"]]
            process = subprocess.Popen(command, env=environment, cwd=self.folder, stdout=log, stderr=log)
        try:
            yield Running(name, number, environment, process)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
