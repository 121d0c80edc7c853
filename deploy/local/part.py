"""The common interface of embedded services: a data folder, a command, an address and a probe."""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from highwater.deploy.local.certificates import Certificates
from highwater.deploy.local.ports import PortBook
from highwater.deploy.local.process import Command, ManagedProcess
from highwater.deploy.local.relay import Relayed
from highwater.deploy.local.stack_secrets import StackSecrets
from highwater.streams.progress import HOUR_SECONDS, WorkLimit

# What embedded servers inherit. Not the whole environment: KAFKA_* and JAVA_* names and the product's secrets are meant
# for other programs.
ENVIRONMENT_KEPT = ("PATH", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
# Every C library has this locale. Java reads file names by it, and under a missing one it finds no file whose path has
# other characters than ASCII.
LOCALE = "C.UTF-8"


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of the services; None for an unknown one, or for the second Redis if there is only one.

    kafka_client_options are librdkafka's own names (security.protocol, sasl.…) and registry_files the PEM files `ca`,
    `certificate` and `key`, both needed for probes; settings are what clients of the embedded services need besides the
    addresses, by their names in the environment.
    """

    kafka: str | None = None
    schema_registry: str | None = None
    database: str | None = None
    redis: str | None = None
    redis_cache: str | None = None
    kafka_client_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    registry_files: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def by_name(self) -> dict[str, str | None]:
        """Return the addresses by the names in status."""
        return {
            "kafka": self.kafka,
            "schema_registry": self.schema_registry,
            "database": self.database,
            "redis": self.redis,
            "redis_cache": self.redis_cache,
        }

    def environment(self) -> dict[str, str]:
        """Return the known addresses by the names of the settings, with the settings that belong to them."""
        names = {
            "KAFKA_BOOTSTRAP_SERVERS": self.kafka,
            "SCHEMA_REGISTRY_URL": self.schema_registry,
            "DATABASE_URL": self.database,
            "REDIS_URL": self.redis,
            "REDIS_CACHE_URL": self.redis_cache,
        }
        return {**{name: value for name, value in names.items() if value is not None}, **self.settings}


# `name:password,…` of the users of Kafka. The operator's processes know all of them, a principal's process its own.
PRINCIPALS_SETTING = "HIGHWATER_KAFKA_PRINCIPALS"
_USER_PREFIX = "highwater-"


def as_principal(environment: Mapping[str, str], principal: str | None) -> dict[str, str]:
    """Return the environment of a process that is this principal of Kafka: with its password and no other's.

    It stays as it is for the operator (None), and where there are no principals.
    """
    if principal is None or not environment.get(PRINCIPALS_SETTING):
        return dict(environment)
    passwords = dict(one.strip().partition(":")[::2] for one in environment[PRINCIPALS_SETTING].split(","))
    kept = {
        name: value
        for name, value in environment.items()
        if name not in (PRINCIPALS_SETTING, "KAFKA_SASL_PASSWORD_FILE")
    }
    return kept | {"KAFKA_SASL_USERNAME": f"{_USER_PREFIX}{principal}", "KAFKA_SASL_PASSWORD": passwords[principal]}


# librdkafka's names for the settings of the embedded broker.
_KAFKA_OPTIONS: Mapping[str, str] = {
    "KAFKA_SECURITY_PROTOCOL": "security.protocol",
    "KAFKA_SASL_MECHANISM": "sasl.mechanism",
    "KAFKA_SASL_USERNAME": "sasl.username",
    "KAFKA_SASL_PASSWORD": "sasl.password",
    "KAFKA_SSL_CA_LOCATION": "ssl.ca.location",
}


def with_settings(given: Addresses, known: Mapping[str, str | None], settings: Mapping[str, str]) -> Addresses:
    """Return the known addresses by name, including those of `given`, with the settings of the embedded services."""
    options = {option: settings[name] for name, option in _KAFKA_OPTIONS.items() if name in settings}
    authority = settings.get("SCHEMA_REGISTRY_SSL_CA_LOCATION")
    return Addresses(
        **known,
        kafka_client_options=options or given.kafka_client_options,
        registry_files={"ca": authority} if authority else given.registry_files,
        settings={**given.settings, **settings},
    )


def service_of(part: str) -> str:
    """Return the name of the address of a service: `kafka` for each of several brokers."""
    return part if part in Addresses().by_name() else part.rpartition("_")[0]


# A service that starts is awaited while it works: a cold start takes a few seconds, the recovery of a log after a crash
# minutes on a busy machine (96 s at load 40 were seen). In two silent minutes a starting thread among 70 that want two
# cores gets 3.4 s; an idle JVM uses 1 to 2.5 s for itself.
START_LIMIT = WorkLimit(quiet_seconds_max=120.0, total_seconds_max=2 * HOUR_SECONDS, processor_seconds_min=3.0)

# One that is asked to end is killed only when it does nothing: a kill under load costs it a recovery, which was seen to take
# longer than its orderly end. Idle threads of Kafka use .2 s in the 20 silent seconds; ten minutes are for one that never ends.
STOP_LIMIT = WorkLimit(quiet_seconds_max=20.0, total_seconds_max=600.0, processor_seconds_min=0.5)


class Part(ABC):
    """One embedded server. Ports are chosen first, then it is prepared, started and probed."""

    name: ClassVar[str]  # the key of its address in status
    is_kept: ClassVar[bool] = True  # whether the others make no sense without its data

    def __init__(self, data_dir: Path, ports: PortBook, certificates: Certificates | None = None) -> None:
        """`certificates` are those of a stack with TLS; without them it runs without TLS."""
        self.certificates = certificates
        self.data_dir = data_dir
        self.folder = data_dir / self.folder_name()
        self.ports = ports
        self.secrets = StackSecrets(data_dir)
        self.process = ManagedProcess(self.name, data_dir / "logs" / f"{self.name}.log")

    @classmethod
    def folder_name(cls) -> str:
        """Return the name of its folder in the data folder."""
        return cls.name

    @property
    @abstractmethod
    def address(self) -> str:
        """Return the address for clients, with the password if there is one."""

    @property
    def client_settings(self) -> Mapping[str, str]:
        """Return what clients need besides the address, by the names of the settings."""
        return {}

    @property
    def relayed(self) -> Relayed | None:
        """Return how TLS is put in front of a server without TLS support; None for one that has it, or needs none."""
        return None

    @abstractmethod
    def take_ports(self) -> None:
        """Choose the ports it will listen on."""

    @abstractmethod
    def prepare(self) -> None:
        """Prepare its data folder for a start: the first time from nothing, later after any kind of end."""

    @abstractmethod
    def command(self) -> Command:
        """Return how to run it."""


def server_environment(**more: str) -> dict[str, str]:
    """Return the environment of an embedded server."""
    kept = {name: os.environ[name] for name in ENVIRONMENT_KEPT if name in os.environ}
    return {**kept, "LC_ALL": LOCALE, **more}


def property_value(value: object) -> str:
    """Return a value as a Java properties file has it. Such a file is ISO-8859-1, and other characters are escaped."""
    text = os.fsencode(str(value)).decode()
    units = struct.unpack(f">{len(text.encode('utf-16-be')) // 2}H", text.encode("utf-16-be"))
    escaped = "".join(chr(unit) if 0x20 <= unit < 0x7F and unit != 0x5C else f"\\u{unit:04x}" for unit in units)
    return f"\\u0020{escaped[1:]}" if escaped.startswith(" ") else escaped
