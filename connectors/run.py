"""The composition root of `highwater connect`: opens what all connectors need and runs the named ones."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from confluent_kafka import KafkaException

from highwater.connectors.backup.catching_up import catch_up
from highwater.connectors.backup.comparing import Comparison
from highwater.connectors.children import count_cores
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.backlog import watch_backlog
from highwater.connectors.kafka.consumer import BatchConsumer, degraded, not_ready
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.outbox import Relay
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.refusal import refusal_of
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.kafka.resting import Doorbell
from highwater.connectors.kafka.truncation import look
from highwater.connectors.postgres.migrate import refuse_half_restored
from highwater.connectors.postgres.pool import is_unavailable, open_pool
from highwater.connectors.slices import SLICES
from highwater.connectors.tracing import start_tracing
from highwater.connectors.waiting import pause
from highwater.connectors.wiring import Connector, Make, Pool, Wiring, WithWatch
from highwater.schemas.errors import AccessRefusedError, ConfigurationError, UnavailableError, leaves
from highwater.streams.clock import ProductClock, monotonic_seconds
from highwater.streams.health import serve_health
from highwater.streams.heap import settle_heap
from highwater.streams.retry import unavailable_seconds
from highwater.streams.settings import Settings
from highwater.streams.telemetry import get_log

# A connector that ran for longer had recovered: its end is a new failure, with the shortest pause.
_LASTING_SECONDS = 60.0
# A driver's message may quote a whole statement.
_ERROR_CHARACTERS_MAX = 500

T = TypeVar("T")
log = get_log("connect")


async def _outbox(w: Wiring) -> Connector:
    return Relay(w.database(), await w.producer(), lease_seconds=w.settings.lease_seconds)


def _all_of(kind: str) -> dict[str, Make]:
    """Return the connectors of a kind by name, over all slices."""
    return {name: make for one in SLICES for name, make in getattr(one, kind).items()}


# Names for several at once.
CONNECTOR_GROUPS: Mapping[str, tuple[str, ...]] = {
    kind: tuple(_all_of(kind)) for kind in ("sinks", "workers", "materializers")
}
# Every connector by name; `connect` without names runs them all. The outbox serves all slices.
CONNECTORS: Mapping[str, Make] = {
    **_all_of("sinks"), "outbox": _outbox, **_all_of("workers"), **_all_of("materializers"),
}  # fmt: skip


def resolve_names(names: Sequence[str]) -> list[str]:
    """Return the connectors of names and group names; none means all.

    Raises:
        ConfigurationError: a name is unknown.
    """
    wanted: list[str] = []
    for name in names or CONNECTORS:
        members = CONNECTOR_GROUPS.get(name, (name,))
        if name not in CONNECTORS and name not in CONNECTOR_GROUPS:
            known = ", ".join((*CONNECTORS, *CONNECTOR_GROUPS))
            raise ConfigurationError(f"there is no connector {name!r}; there are {known}")
        wanted += [member for member in members if member not in wanted]
    return wanted


async def run_connectors(settings: Settings, names: Sequence[str]) -> None:
    """Run connectors until SIGTERM or SIGINT.

    Raises:
        ConfigurationError: a name or an address is wrong.
        Exception: ended a connector that should not have ended; the process must not continue without it.
    """
    wanted = resolve_names(names)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    connectors: list[Connector] = []
    waiting: dict[str, str] = {"connect": "starting"}
    async with contextlib.AsyncExitStack() as resources:
        exporter = start_tracing(settings, "connect")
        if exporter is not None:
            resources.callback(exporter.close)
        if settings.health_port:
            server = await serve_health(
                settings.host,
                settings.health_port,
                lambda: {**waiting, **not_ready(connectors)},
                lambda: degraded(connectors),
            )
            resources.push_async_callback(_close_server, server)
        context = await _surroundings(settings, waiting, stop, resources)
        if context is None:
            return
        wiring = Wiring(with_rebuild_processes(settings, wanted, count_cores()), context, resources)
        for name in wanted:
            connector = await _when_available(partial(CONNECTORS[name], wiring), waiting, stop)
            if connector is None:
                return
            connectors.append(connector)
        waiting.clear()
        settle_heap()
        log.info("connectors_started", names=wanted)
        readers = [connector for connector in connectors if isinstance(connector, (BatchConsumer, WithWatch))]
        async with asyncio.TaskGroup() as tasks:
            measuring = watch_backlog(
                context.admin,
                context.pool,
                lambda: readers,
                stop,
                has_outbox=Relay.group in {c.group for c in connectors},
            )
            tasks.create_task(measuring, name="backlog")
            for connector in connectors:
                tasks.create_task(keep_running(connector, waiting, stop), name=connector.group)


def with_rebuild_processes(settings: Settings, names: Sequence[str], cores: int) -> Settings:
    """Return the settings with a number of rebuild processes: as set, or one per core on a host that does nothing else.

    With other connectors it is one: they, the brokers and the database of a small machine need the rest.
    """
    if settings.rebuild_processes is not None:
        return settings
    return replace(settings, rebuild_processes=cores if list(names) == ["rebuild"] else 1)


async def keep_running(connector: Connector, waiting: dict[str, str], stop: asyncio.Event) -> None:
    """Run a connector, and restart it after a service was unavailable; each error that ended it is logged.

    Connectors themselves wait for their services. This is for the place where one does not: the others of the process
    continue, and nothing is lost, since a connector starts from what is stored.
    """
    attempt = 0
    while not stop.is_set():
        began = monotonic_seconds()
        try:
            await connector.run(stop)
        except Exception as error:
            found = leaves(error)
            for leaf in found:
                _note(connector.group, leaf)
            if not all(is_passing(leaf) for leaf in found):
                raise
            attempt = 1 if monotonic_seconds() - began > _LASTING_SECONDS else attempt + 1
            waiting[connector.group] = f"ended, and is started again: {found[0]}"
        else:
            return
        await pause(stop, unavailable_seconds(attempt))
        waiting.pop(connector.group, None)


def _note(group: str, leaf: BaseException) -> None:
    text = f"{type(leaf).__name__}: {leaf}"[:_ERROR_CHARACTERS_MAX]
    if is_passing(leaf):
        log.warning("connector_failed", connector=group, error=text, effect="it is started again")
    else:
        log.error("connector_failed", connector=group, error=text, effect="the process ends", exc_info=leaf)


def is_passing(error: BaseException) -> bool:
    """Return whether an error means that a service is temporarily unavailable: not our fault, nor the data's."""
    if isinstance(error, KafkaException):
        return not error.args[0].fatal()
    return isinstance(error, UnavailableError) or is_unavailable(error)


async def _close_server(server: asyncio.Server) -> None:
    server.close()
    await server.wait_closed()


async def _surroundings(
    settings: Settings, waiting: dict[str, str], stop: asyncio.Event, resources: contextlib.AsyncExitStack
) -> ProcessContext | None:
    """Open what all connectors need; wait while a service is unavailable, and log that once."""
    registry = Registry(settings.registry_access())
    codec = await _when_available(registry.codec, waiting, stop)
    if codec is None:
        return None
    client = settings.kafka_client()
    refusal = await asyncio.to_thread(refusal_of, client)
    if refusal is not None:
        raise AccessRefusedError(f"Kafka refuses the connection: {refusal}")
    admin, clock = Admin(client), ProductClock(settings.clock_file)

    async def catch_up_alone(starts: Mapping[Place, int]) -> None:
        # A sink prepares on one connection and stores on another, while a third reads what waits.
        async with await open_pool(settings.database, size_max=4, admit=None) as alone:
            await catch_up(ProcessContext(alone, client, admin, registry, codec, clock), settings, starts)

    comparison = Comparison(settings, admin, registry.codec, clock, catch_up_alone)
    resources.push_async_callback(comparison.close)
    pool = await _when_available(
        lambda: open_pool(settings.database, size_max=20, admit=comparison.admit), waiting, stop
    )
    if pool is None:
        return None
    await resources.enter_async_context(pool)
    if await _when_available(lambda: _restored(pool), waiting, stop) is None:
        return None
    await _when_available(admin.require_partitions, waiting, stop)
    clock = ProductClock(settings.clock_file)
    # Before the first record of the outbox: it would take an offset that a lost record had.
    await _when_available(lambda: look(admin, pool, "connect", clock()), waiting, stop)
    doorbell = Doorbell(client)
    resources.push_async_callback(asyncio.to_thread, doorbell.close)
    return ProcessContext(
        pool, client, admin, registry, codec, clock, doorbell, caught_up_ms=lambda: comparison.caught_up_ms
    )


async def _restored(pool: Pool) -> bool:
    await refuse_half_restored(pool)
    return True


async def _when_available(make: Callable[[], Awaitable[T]], waiting: dict[str, str], stop: asyncio.Event) -> T | None:
    """Return the result of `make` as soon as its services are available; None if the process stops first.

    Raises:
        AccessRefusedError: one refuses us.
    """
    attempt = 0
    while not stop.is_set():
        try:
            return await make()
        except AccessRefusedError:  # waiting does not correct a password
            raise
        except UnavailableError as error:
            attempt += 1
            if waiting.get("connect") != str(error):
                log.warning("connect_waiting", reason=str(error))
            waiting["connect"] = str(error)
            await pause(stop, unavailable_seconds(attempt))
    return None
