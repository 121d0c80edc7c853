"""What topics, groups and schemas are read from, the same for the API and for commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from highwater.connectors.kafka.admin import Admin
from highwater.streams.access import RegistryAccess

if TYPE_CHECKING:
    import asyncpg

    from highwater.api.core.services import Services


@dataclass(frozen=True, slots=True)
class Sources:
    """The broker, the registry, and the database, which is asked for only where positions are read.

    `client`: options of a client that is made for one answer.
    """

    admin: Admin
    client: Mapping[str, str]
    registry: RegistryAccess | None
    require_pool: Callable[[], asyncpg.Pool[asyncpg.Record]]

    @classmethod
    def of(cls, services: Services) -> Sources:
        """Those of an API; that a client of one answer ends is no news, so it logs errors alone."""
        settings = services.settings
        client = {**settings.kafka_client(), "log_level": "4"}
        return cls(services.admin, client, settings.registry_access(), services.database.require)
