"""Finds the addresses of the services: from the settings, else from the local stack of the data folder.

Invariants: nothing is guessed. An address that neither a setting nor a running stack gives is an error, never a default
port on which another stack may listen. A command prints in one line on standard error which stack it uses.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.command import CommandFailedError
from highwater.api.command.terminal import say
from highwater.schemas.topics import use_partitions
from highwater.streams.access import trusts_nobody
from highwater.streams.settings import Settings, environment_with_file, read_settings

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    import asyncpg

# Setting of an address -> prefix of the settings that belong to it.
_GOES_WITH = {
    "KAFKA_BOOTSTRAP_SERVERS": ("KAFKA_S", "HIGHWATER_KAFKA_", "HIGHWATER_REPLICATION_FACTOR", "HIGHWATER_PARTITIONS"),
    "SCHEMA_REGISTRY_URL": ("SCHEMA_REGISTRY_S",),
}
ADDRESSES = {
    "kafka": "KAFKA_BOOTSTRAP_SERVERS",
    "schema_registry": "SCHEMA_REGISTRY_URL",
    "database": "DATABASE_URL",
    "redis": "REDIS_URL",
}
# Optional: without it the Redis of `redis` holds everything.
OPTIONAL_ADDRESSES = {"redis_cache": "REDIS_CACHE_URL"}


def own_settings(given: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of the environment and the `.env` file, as a role reads them; `given` overrides both.

    Sets the partition counts of the topic catalogue to those of the installation.
    """
    settings = read_settings({**environment_with_file(), **(given or {})})
    use_partitions(settings.partitions)
    return settings


# Their names for people.
_NAMES = {"kafka": "Kafka", "schema_registry": "schema registry", "database": "PostgreSQL", "redis": "Redis"}
_SAID = "highwater.stack_line"
_API_SETTINGS = ("HIGHWATER_HOST", "HIGHWATER_PORT")


def stack_settings(*needed: str, given: Mapping[str, str] | None = None) -> Settings:
    """Return the settings, with missing addresses from the local stack that runs on their data folder.

    Args:
        needed: fields of `ADDRESSES` that the command requires.
        given: settings that override those of the environment.

    Raises:
        CommandFailedError: a required address is unknown.
    """
    settings = own_settings(given)
    named = {name: getattr(settings, name) for name in ADDRESSES}
    shown = {_NAMES[name]: named[name] for name in needed or ADDRESSES if named[name] is not None}
    if all(address is not None for address in named.values()):
        _say_stack(stack_line(shown))
        return settings
    running = running_addresses(settings)
    found = {setting: running.get(name) for name, setting in ADDRESSES.items() if getattr(settings, name) is None}
    if settings.redis is None and settings.redis_cache is None:  # a second Redis belongs to the first
        found |= {setting: running.get(name) for name, setting in OPTIONAL_ADDRESSES.items()}
    # Settings that belong to an address, such as the password for Kafka, are only valid with that address.
    found |= {
        setting: value
        for setting, value in running.get("settings", {}).items()
        if any(setting.startswith(_GOES_WITH[address]) for address in found if address in _GOES_WITH)
    }
    settings = own_settings({**{name: value for name, value in found.items() if value}, **(given or {})})
    for name in needed:
        if getattr(settings, name) is None:
            raise CommandFailedError(
                f"{ADDRESSES[name]} is not set and no local stack runs in {settings.data_dir.absolute()};"
                " `highwater up` starts one"
            )
    is_local = any(named[name] is None for name in needed or ADDRESSES) and bool(running)
    _say_stack(stack_line(shown, settings.data_dir.absolute() if is_local else None), is_found=is_local)
    return settings


def running_addresses(settings: Settings) -> dict[str, Any]:
    """Return the addresses of the local stack on the data folder; empty if none runs there or it is not installed."""
    try:
        from highwater.deploy.local.datadir import checked, is_held
        from highwater.deploy.local.state import living, read_state
    except ModuleNotFoundError:
        return {}  # without the extra `local` there is no local stack
    data_dir = checked(settings.data_dir)
    state = read_state(data_dir)
    if state is None or not is_held(data_dir) or living(state["supervisor"]) is None:
        return {}
    return state


def stack_line(addresses: Mapping[str, str], folder: Path | None = None) -> str:
    """Describe the stack of a command: addresses with their names, and the folder of the local stack they come from."""
    from highwater.deploy.local.stack_secrets import hidden_password

    told = [] if folder is None else [f"the local stack in {folder}"]
    told += [f"{name} {hidden_password(address)}" for name, address in addresses.items()]
    return f"stack: {', '.join(told)}" if told else ""


def _say_stack(line: str, *, is_found: bool = False) -> None:
    """Print the stack once per command: on a terminal, and whenever it was found in a folder and not named.

    A script that names its stack gets only errors on standard error; a notebook uses `repr` instead.
    """
    context = click.get_current_context(silent=True)
    if context is None or not line or not (is_found or sys.stderr.isatty()):
        return
    said: list[str] = context.find_root().meta.setdefault(_SAID, [])
    if line not in said:
        said.append(line)
        say(line, err=True)


def api_address(settings: Settings, environment: Mapping[str, str]) -> str:
    """Return the address of the API: from the settings, or from the local stack on the data folder.

    Raises:
        CommandFailedError: neither gives one.
    """
    if settings.api_url is not None:
        address = settings.api_url.rstrip("/")
        _say_stack(stack_line({"API": address}))
        return address
    return api_of_this_machine(settings, environment)


def api_of_this_machine(settings: Settings, environment: Mapping[str, str]) -> str:
    """Return the address of the API on this machine: HIGHWATER_HOST and _PORT, or from the local stack on the data
    folder.

    Raises:
        CommandFailedError: none of these is set, and no stack runs there.
    """
    if any(environment.get(name, "").strip() for name in _API_SETTINGS):
        address = own_api_address(settings, settings.port)
        _say_stack(stack_line({"API": address}))
        return address
    found = running_addresses(settings).get("api")
    if not found:
        raise CommandFailedError(
            f"no local stack runs in {settings.data_dir.absolute()}, and neither HIGHWATER_API_URL nor HIGHWATER_PORT says where"
            " the API is; `highwater up` starts a stack here, HIGHWATER_DATA_DIR names the folder of another"
        )
    _say_stack(stack_line({"API": str(found)}, settings.data_dir.absolute()), is_found=True)
    return str(found)


def own_api_address(settings: Settings, port: int) -> str:
    """Return the address at which this machine reaches the API of these settings."""
    scheme = "http" if settings.tls_cert_file is None else "https"
    return f"{scheme}://{reachable(settings.host)}:{port}"


def api_trust(settings: Settings, address: str) -> ssl.SSLContext:
    """Return what a client of the API at that address trusts, as httpx2 accepts it.

    Raises:
        ConfigurationError: a certificate cannot be read.
    """
    if not address.startswith("https:"):
        return trusts_nobody()
    from highwater.api.core.tls import trusted_by_clients

    return trusted_by_clients(settings, is_own=settings.api_url is None)


def reachable(host: str) -> str:
    """Return an address for connecting to a listener on `host`: the loopback address if it listens on all addresses."""
    if host in ("0.0.0.0", ""):  # noqa: S104 - compared with, not listened on
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def kafka_client(settings: Settings) -> dict[str, str]:
    """Return librdkafka's connection settings. Its own log is silenced: the command prints one line on standard error instead."""
    return {**settings.kafka_client(), "log_level": "0"}


@asynccontextmanager
async def database(settings: Settings) -> AsyncIterator[asyncpg.Pool[asyncpg.Record]]:
    """A small pool, closed at the end."""
    from highwater.connectors.postgres.pool import open_pool

    pool = await open_pool(settings.database, size_max=2, admit=None)
    try:
        yield pool
    finally:
        await pool.close()
