"""The sources of topics, groups and schemas, the same for the API and for commands."""

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
    """The broker, the registry, and the database, which is queried only for positions.

    `client`: options of a client that is created for one answer.
    """

    admin: Admin
    client: Mapping[str, str]
    registry: RegistryAccess | None
    require_pool: Callable[[], asyncpg.Pool[asyncpg.Record]]

    @classmethod
    def of(cls, services: Services) -> Sources:
        """Return the sources of an API; its short-lived clients log only errors, since their end is normal."""
        settings = services.settings
        client = {**settings.kafka_client(), "log_level": "4"}
        return cls(services.admin, client, settings.registry_access(), services.database.require)
