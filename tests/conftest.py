"""The real parts that every tier above unit runs on: one embedded stack a session, topics and tables made once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.local.stack import LocalStack
from streams.settings import Settings, read_settings

# A shell starts background jobs with SIGINT ignored, and children inherit that; tests interrupt commands.
signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Stack:
    """Addresses of the session's parts, and the stack itself for tests that stop and start them."""

    kafka: str
    schema_registry: str
    database: str
    redis: str
    local: LocalStack

    def environment(self, **more: str) -> dict[str, str]:
        """An environment for a child process that uses these parts."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HIGHWATER_")}
        return {
            **clean,
            "KAFKA_BOOTSTRAP_SERVERS": self.kafka,
            "SCHEMA_REGISTRY_URL": self.schema_registry,
            "DATABASE_URL": self.database,
            "REDIS_URL": self.redis,
            **more,
        }

    def settings(self, **more: Any) -> Settings:
        """Settings that use these parts; `more` names settings as in the environment."""
        named = {name: str(value) for name, value in more.items()}
        return read_settings(
            {
                "KAFKA_BOOTSTRAP_SERVERS": self.kafka,
                "SCHEMA_REGISTRY_URL": self.schema_registry,
                "DATABASE_URL": self.database,
                "REDIS_URL": self.redis,
                **named,
            }
        )


async def _init(settings: Settings) -> None:
    from connectors.kafka.admin import Admin
    from connectors.kafka.registry import Registry
    from connectors.stores.postgres import migrate, open_pool
    from schemas.topics import TOPICS, all_topics

    async with await open_pool(settings.database) as pool:
        await migrate(pool)
    await Admin(settings.kafka_client()).ensure_topics(all_topics(), replication_factor=1)
    await Registry(settings.schema_registry).register(TOPICS.values())


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The whole product as `highwater up` runs it, on parts of its own that a test may stop and start."""
    from tests.product import Product

    folder: Path = tmp_path_factory.mktemp("product")
    with LocalStack(folder / "parts") as local, Product(folder / "data", local) as running:
        yield running


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Kafka, registry, PostgreSQL and Redis, with topics, schemas and tables in place."""
    data_dir: Path = tmp_path_factory.mktemp("stack") / "data"
    with LocalStack(data_dir) as local:
        found = local.addresses
        named = {name: address or "" for name, address in found.by_name().items()}
        made = Stack(**named, local=local)
        asyncio.run(_init(made.settings()))
        yield made
