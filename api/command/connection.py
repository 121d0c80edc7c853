"""Where the parts are: the settings, and what they leave open from the local stack that runs on the data folder."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from highwater.api.command.command import CommandFailedError
from highwater.streams.settings import Settings, environment_with_file, read_settings

if TYPE_CHECKING:
    import ssl

    import asyncpg

ADDRESSES = {
    "kafka": "KAFKA_BOOTSTRAP_SERVERS",
    "schema_registry": "SCHEMA_REGISTRY_URL",
    "database": "DATABASE_URL",
    "redis": "REDIS_URL",
}


def own_settings(given: Mapping[str, str] | None = None) -> Settings:
    """The settings of the environment and the `.env` file, as a role of its own reads them; `given` goes before both."""
    return read_settings({**environment_with_file(), **(given or {})})


def stack_settings(*needed: str, given: Mapping[str, str] | None = None) -> Settings:
    """The settings, with the addresses they leave open taken from the local stack that runs on their data folder.

    Args:
        needed: fields of `ADDRESSES` that the command cannot do without.
        given: settings that go before those of the environment.

    Raises:
        CommandFailedError: one of those is known from neither.
    """
    settings = own_settings(given)
    if all(getattr(settings, name) is not None for name in ADDRESSES):
        return settings
    running = running_addresses(settings)
    found = {name: running.get(name) for name in ADDRESSES if getattr(settings, name) is None}
    settings = dataclasses.replace(settings, **{name: value for name, value in found.items() if value})
    for name in needed:
        if getattr(settings, name) is None:
            raise CommandFailedError(
                f"{ADDRESSES[name]} is not set and no local stack runs in {settings.data_dir}; `highwater up` starts one"
            )
    return settings


def running_addresses(settings: Settings) -> dict[str, Any]:
    """Where the local stack on the data folder has its parts; empty when none runs there or it is not installed."""
    try:
        from highwater.deploy.local.datadir import checked, is_held
        from highwater.deploy.local.state import living, read_state
    except ModuleNotFoundError:
        return {}  # without the extra `local` there can be no local stack
    data_dir = checked(settings.data_dir)
    state = read_state(data_dir)
    if state is None or not is_held(data_dir) or living(state["supervisor"]) is None:
        return {}
    return state


def api_address(settings: Settings, environment: Mapping[str, str]) -> str:
    """Where the API is: as it is set, or where the local stack on the data folder has it."""
    if settings.api_url is not None:
        return settings.api_url.rstrip("/")
    is_set = any(environment.get(name, "").strip() for name in ("HIGHWATER_HOST", "HIGHWATER_PORT"))
    found = None if is_set else running_addresses(settings).get("api")
    return str(found or own_api_address(settings, settings.port))


def own_api_address(settings: Settings, port: int) -> str:
    """Where the API that runs by these settings is reached from this machine."""
    scheme = "http" if settings.tls_cert_file is None else "https"
    return f"{scheme}://{reachable(settings.host)}:{port}"


def api_trust(settings: Settings, address: str) -> ssl.SSLContext | bool:
    """What a client of the API at that address trusts, as httpx takes it.

    Raises:
        ConfigurationError: a certificate cannot be read.
    """
    if not address.startswith("https:"):
        return True
    from highwater.api.core.tls import trusted_by_clients

    return trusted_by_clients(settings, is_own=settings.api_url is None)


def reachable(host: str) -> str:
    """An address to ask a listener on `host` at: one on all addresses is asked on the loopback."""
    if host in ("0.0.0.0", ""):  # noqa: S104 - compared with, not listened on
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def kafka_client(settings: Settings) -> dict[str, str]:
    """Librdkafka's connection settings; it says nothing itself on standard error, where the command says one line."""
    return {**settings.kafka_client(), "log_level": "0"}


@asynccontextmanager
async def database(settings: Settings) -> AsyncIterator[asyncpg.Pool[asyncpg.Record]]:
    """A small pool, closed at the end."""
    from highwater.connectors.postgres.pool import open_pool

    pool = await open_pool(settings.database, size_max=2)
    try:
        yield pool
    finally:
        await pool.close()
