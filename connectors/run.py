"""The composition root of `highwater connect`: opens what all connectors need and runs those that are named."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping, Sequence

from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.consumer import degraded, not_ready
from highwater.connectors.kafka.handler import Surroundings
from highwater.connectors.kafka.outbox import Relay
from highwater.connectors.kafka.refusal import refusal_of
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.patience import pause
from highwater.connectors.postgres.pool import open_pool
from highwater.connectors.slices import SLICES
from highwater.connectors.wiring import Connector, Make, Wiring
from highwater.schemas.errors import AccessRefusedError, ConfigurationError, UnavailableError
from highwater.streams.clock import ProductClock
from highwater.streams.health import serve_health
from highwater.streams.heap import settle_heap
from highwater.streams.retry import unavailable_seconds
from highwater.streams.settings import Settings
from highwater.streams.telemetry import get_log

log = get_log("connect")


async def _outbox(w: Wiring) -> Connector:
    return Relay(w.database(), await w.producer())


def _all_of(kind: str) -> dict[str, Make]:
    """The connectors of a kind by name, over all slices."""
    return {name: make for one in SLICES for name, make in getattr(one, kind).items()}


# Names for several at once.
CONNECTOR_GROUPS: Mapping[str, tuple[str, ...]] = {
    kind: tuple(_all_of(kind)) for kind in ("sinks", "workers", "materializers")
}
# Every connector by name; `connect` without names runs them all. The outbox serves all households.
CONNECTORS: Mapping[str, Make] = {
    **_all_of("sinks"), "outbox": _outbox, **_all_of("workers"), **_all_of("materializers"),
}  # fmt: skip


def resolve_names(names: Sequence[str]) -> list[str]:
    """The connectors meant by names and group names; none means all.

    Raises:
        ConfigurationError: a name is neither.
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
        Exception: what ended a connector that should not have ended; the process must not go on without it.
    """
    wanted = resolve_names(names)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    connectors: list[Connector] = []
    waiting: dict[str, str] = {"connect": "starting"}
    async with contextlib.AsyncExitStack() as resources:
        if settings.health_port:
            server = await serve_health(
                settings.host,
                settings.health_port,
                lambda: {**waiting, **not_ready(connectors)},
                lambda: degraded(connectors),
            )
            resources.push_async_callback(_close_server, server)
        around = await _surroundings(settings, waiting, stop, resources)
        if around is None:
            return
        wiring = Wiring(settings, around, resources)
        connectors += [await CONNECTORS[name](wiring) for name in wanted]
        waiting.clear()
        settle_heap()
        log.info("connectors_started", names=wanted)
        async with asyncio.TaskGroup() as tasks:
            for connector in connectors:
                tasks.create_task(connector.run(stop), name=connector.group)


async def _close_server(server: asyncio.Server) -> None:
    server.close()
    await server.wait_closed()


async def _surroundings(
    settings: Settings, waiting: dict[str, str], stop: asyncio.Event, resources: contextlib.AsyncExitStack
) -> Surroundings | None:
    """Open what all connectors need; a part that is away is waited for, and said once."""
    attempt = 0
    registry = Registry(settings.registry_access())
    while not stop.is_set():
        try:
            codec = await registry.codec()
            pool = await resources.enter_async_context(await open_pool(settings.database, size_max=20))
        except AccessRefusedError:  # no waiting makes a password right
            raise
        except UnavailableError as error:
            attempt += 1
            if waiting.get("connect") != str(error):
                log.warning("connect_waiting", reason=str(error))
            waiting["connect"] = str(error)
            await pause(stop, unavailable_seconds(attempt))
            continue
        client = settings.kafka_client()
        refusal = await asyncio.to_thread(refusal_of, client)
        if refusal is not None:
            raise AccessRefusedError(f"Kafka refuses us: {refusal}")
        return Surroundings(pool, client, Admin(client), registry, codec, ProductClock(settings.clock_file))
    return None
