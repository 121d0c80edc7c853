"""docker-compose.kafka.yml as tests read it: its services, and the environment of each of the product's services."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from highwater.streams.settings import Settings, read_settings
from tests import ROOT

API_KEY = "0123456789abcdef0123456789abcdef"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.kafka.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("highwater:")}
BROKERS = {name: service for name, service in SERVICES.items() if service["image"].startswith("apache/kafka:")}


def environment_of(name: str) -> dict[str, str]:
    """The environment of one of our services with only the required settings of the file."""
    return with_defaults(OURS[name]["environment"])


def with_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """The values of an environment, where `${NAME:-default}` is the default and a required one is the tests' own."""
    given = {"HIGHWATER_API_KEYS": f"admin:{API_KEY}"}
    form = re.compile(r"\$\{(\w+):([-?])([^}]*)\}")
    return {
        setting: form.sub(lambda found: given[found[1]] if found[2] == "?" else found[3], value)
        for setting, value in environment.items()
    }


def settings_of(name: str) -> Settings:
    """The settings that one of our services reads from that."""
    return read_settings(environment_of(name))
