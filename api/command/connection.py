"""Finds the addresses of the services: from the settings, and where these name none, from the local stack on the data folder.

Invariants: nothing is guessed. What neither a setting nor a running stack names is an error, never a default port on which some
other stack may listen. A command says in one line on standard error which stack it speaks to.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.command import CommandFailedError
from highwater.schemas.topics import use_partitions
from highwater.streams.access import trusts_nobody
from highwater.streams.settings import Settings, environment_with_file, read_settings

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    import asyncpg

# Setting of an address -> how the settings that go with it begin.
_GOES_WITH = {
    "KAFKA_BOOTSTRAP_SERVERS": ("KAFKA_S", "HIGHWATER_REPLICATION_FACTOR", "HIGHWATER_PARTITIONS"),
    "SCHEMA_REGISTRY_URL": ("SCHEMA_REGISTRY_S",),
}
ADDRESSES = {
    "kafka": "KAFKA_BOOTSTRAP_SERVERS",
    "schema_registry": "SCHEMA_REGISTRY_URL",
    "database": "DATABASE_URL",
    "redis": "REDIS_URL",
}
# One that may be missing: then the Redis of `redis` holds everything.
OPTIONAL_ADDRESSES = {"redis_cache": "REDIS_CACHE_URL"}


def own_settings(given: Mapping[str, str] | None = None) -> Settings:
    """The settings of the environment and the `.env` file, as a role of its own reads them; `given` goes before both.

    From here on the catalogue of topics has the installation's number of partitions.
    """
    settings = read_settings({**environment_with_file(), **(given or {})})
    use_partitions(settings.partitions)
    return settings


# What people call them.
_NAMES = {"kafka": "Kafka", "schema_registry": "schema registry", "database": "PostgreSQL", "redis": "Redis"}
_SAID = "highwater.stack_line"
_API_SETTINGS = ("HIGHWATER_HOST", "HIGHWATER_PORT")


def stack_settings(*needed: str, given: Mapping[str, str] | None = None) -> Settings:
    """The settings, with the addresses they leave open taken from the local stack that runs on their data folder.

    Args:
        needed: fields of `ADDRESSES` that the command cannot do without.
        given: settings that go before those of the environment.

    Raises:
        CommandFailedError: one of those is known from neither.
    """
    settings = own_settings(given)
    named = {name: getattr(settings, name) for name in ADDRESSES}
    shown = {_NAMES[name]: named[name] for name in needed or ADDRESSES if named[name] is not None}
    if all(address is not None for address in named.values()):
        _say_stack(stack_line(shown))
        return settings
    running = running_addresses(settings)
    found = {setting: running.get(name) for name, setting in ADDRESSES.items() if getattr(settings, name) is None}
    if settings.redis is None and settings.redis_cache is None:  # a second Redis goes with the first
        found |= {setting: running.get(name) for name, setting in OPTIONAL_ADDRESSES.items()}
    # What goes with an address, such as the password for Kafka, is of use with that address alone.
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


def stack_line(addresses: Mapping[str, str], folder: Path | None = None) -> str:
    """Which stack a command speaks to: addresses by what they are called, and the folder of the local stack they are from."""
    from highwater.deploy.local.stack_secrets import hidden_password

    told = [] if folder is None else [f"the local stack in {folder}"]
    told += [f"{name} {hidden_password(address)}" for name, address in addresses.items()]
    return f"stack: {', '.join(told)}" if told else ""


def _say_stack(line: str, *, is_found: bool = False) -> None:
    """Say it once a command: on a terminal, and wherever the stack was found in a folder and not named.

    A script that names its stack gets nothing on standard error but errors; a notebook is asked by `repr` instead.
    """
    context = click.get_current_context(silent=True)
    if context is None or not line or not (is_found or sys.stderr.isatty()):
        return
    said: list[str] = context.find_root().meta.setdefault(_SAID, [])
    if line not in said:
        said.append(line)
        click.echo(line, err=True)


def api_address(settings: Settings, environment: Mapping[str, str]) -> str:
    """Where the API is: as it is set, or where the local stack on the data folder has it.

    Raises:
        CommandFailedError: neither says so.
    """
    if settings.api_url is not None:
        address = settings.api_url.rstrip("/")
        _say_stack(stack_line({"API": address}))
        return address
    return api_of_this_machine(settings, environment)


def api_of_this_machine(settings: Settings, environment: Mapping[str, str]) -> str:
    """Where the API on this machine is: on HIGHWATER_HOST and _PORT, or where the local stack on the data folder has it.

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
    """Where the API that runs by these settings is reached from this machine."""
    scheme = "http" if settings.tls_cert_file is None else "https"
    return f"{scheme}://{reachable(settings.host)}:{port}"


def api_trust(settings: Settings, address: str) -> ssl.SSLContext:
    """What a client of the API at that address trusts, as httpx takes it.

    Raises:
        ConfigurationError: a certificate cannot be read.
    """
    if not address.startswith("https:"):
        return trusts_nobody()
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
    """Return librdkafka's connection settings. Its own log is silenced: the command prints one line on standard error instead."""
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
