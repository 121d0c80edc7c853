"""docker-compose.kafka.yml as the manifests' source: the services, their environment, and the brokers' configuration."""

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
# A broker's settings that the operator sets itself: its id, its listeners, its disks, its users.
_OPERATORS_OWN = (
    *("NODE_ID", "PROCESS_ROLES", "CONTROLLER_", "LISTENER", "ADVERTISED_", "INTER_BROKER_", "LOG_DIRS"),
    *("AUTHORIZER_", "SUPER_USERS", "SASL_"),
)


@dataclass(frozen=True, slots=True)
class Service:
    """One of our services: `environment` as in the file, `name` also of its workload."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    grace_seconds: int

    @property
    def port(self) -> int | None:
        """Return the port of `/healthz`, `/readyz` and `/metrics`; None for the one-shot."""
        named = self.environment.get("HIGHWATER_HEALTH_PORT") or self.environment.get("HIGHWATER_PORT")
        return None if named is None else int(named)

    @property
    def is_api(self) -> bool:
        """Return whether clients other than probes call it."""
        return self.command == ("api",)


def read_services() -> dict[str, dict[str, Any]]:
    """Return every service of the file."""
    services: dict[str, dict[str, Any]] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))["services"]
    return services


def own_services() -> tuple[Service, ...]:
    """Return those with our image, in the file's order: `init`, then the roles."""
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
    """Return whether a value from outside is required; None for one that the file sets."""
    found = _FROM_OUTSIDE.fullmatch(value)
    return None if found is None else found[2] == "?"


def image_of(service: str) -> str:
    """Return the image of a service."""
    return str(read_services()[service]["image"])


def broker_config() -> dict[str, str]:
    """Return the brokers' settings in the file, by Kafka's names, without those of the operator."""
    environment = read_services()["kafka-1"]["environment"]
    return {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith("KAFKA_") and not name.removeprefix("KAFKA_").startswith(_OPERATORS_OWN)
    }


def server_options(service: str) -> tuple[str, ...]:
    """Return the command of a service; values from outside have their defaults."""
    return tuple(_FROM_OUTSIDE.sub(lambda found: found[3], word) for word in read_services()[service]["command"])
