"""The sources of `topics`, `groups` and `schemas`: the stack of the settings, or the local one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn

from highwater.api.command.connection import database, kafka_client, stack_settings

if TYPE_CHECKING:
    from highwater.api.broker.sources import Sources


@asynccontextmanager
async def broker_sources() -> AsyncIterator[Sources]:
    """Yield the sources with the database, in which our groups store their positions."""
    from highwater.api.broker.sources import Sources
    from highwater.connectors.kafka.admin import Admin

    settings = stack_settings("kafka", "schema_registry", "database")
    client = kafka_client(settings)
    async with database(settings) as pool:
        yield Sources(Admin(client), client, settings.registry_access(), lambda: pool)


def registry_sources() -> Sources:
    """Return the sources without the database: for schemas, and for the list of topics."""
    from highwater.api.broker.sources import Sources
    from highwater.connectors.kafka.admin import Admin

    settings = stack_settings("kafka", "schema_registry")
    client = kafka_client(settings)
    return Sources(Admin(client), client, settings.registry_access(), _no_database)


def _no_database() -> NoReturn:
    raise RuntimeError("this command reads no positions")
