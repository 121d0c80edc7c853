"""docker-compose.kafka.yml as the manifests' source: what runs, with which environment, and how the brokers are set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
_FILE = ROOT / "docker-compose.kafka.yml"
_FROM_OUTSIDE = re.compile(r"\$\{(\w+):([-?])([^}]*)\}")
# A broker's settings that the operator makes itself: who it is, where it listens, where its disks are.
_OPERATORS_OWN = ("NODE_ID", "PROCESS_ROLES", "CONTROLLER_", "LISTENER", "ADVERTISED_", "INTER_BROKER_", "LOG_DIRS")


@dataclass(frozen=True, slots=True)
class Service:
    """One of ours: `environment` as the file has it, `name` also of its workload."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    grace_seconds: int

    @property
    def port(self) -> int | None:
        """Where it answers `/healthz`, `/readyz` and `/metrics`; None of the one-shot."""
        named = self.environment.get("HIGHWATER_HEALTH_PORT") or self.environment.get("HIGHWATER_PORT")
        return None if named is None else int(named)

    @property
    def is_api(self) -> bool:
        """Whether it is asked by others than probes."""
        return self.command == ("api",)


def read_services() -> dict[str, dict[str, Any]]:
    """Every service of the file."""
    services: dict[str, dict[str, Any]] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))["services"]
    return services


def own_services() -> tuple[Service, ...]:
    """Those of our image, in the file's order: `init`, then the roles."""
    return tuple(
        Service(
            name,
            tuple(one["command"]),
            one["environment"],
            int(one["stop_grace_period"].removesuffix("s")),
        )
        for name, one in read_services().items()
        if one["image"].startswith("highwater:")
    )


def is_required(value: str) -> bool | None:
    """Of a value that is given from outside: whether nothing runs without it; None of one that the file has."""
    found = _FROM_OUTSIDE.fullmatch(value)
    return None if found is None else found[2] == "?"


def image_of(service: str) -> str:
    """The image of a service."""
    return str(read_services()[service]["image"])


def broker_config() -> dict[str, str]:
    """What the file sets of the brokers, by Kafka's names, without what the operator sets."""
    environment = read_services()["kafka-1"]["environment"]
    return {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith("KAFKA_") and not name.removeprefix("KAFKA_").startswith(_OPERATORS_OWN)
    }


def server_options(service: str) -> tuple[str, ...]:
    """The command of a service; what is given from outside has its default."""
    return tuple(_FROM_OUTSIDE.sub(lambda found: found[3], word) for word in read_services()[service]["command"])
