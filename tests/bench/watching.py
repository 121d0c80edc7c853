"""What a running product holds and is behind by, sampled repeatedly: memory of each role, lag, outbox, rows, keys."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
from redis import Redis

from highwater.api.command.connection import database
from highwater.connectors.kafka.backlog import outbox_backlog
from highwater.connectors.kafka.groups import catalogued_groups, standings
from highwater.streams.settings import read_settings
from tests.product import Product

_MIB = 1 << 20
_FEW_ROWS = 100_000


def memory_mib(product: Product) -> dict[str, float]:
    """Proportional set size of each role and server with all its processes, in MiB: what they share counts once."""
    pids = {str(part["name"]): part["pid"] for part in product.status()["parts"] if part["name"] != "init"}
    pids |= {name: product.parts.process(name).pid for name in product.parts.names}
    return {name: round(sum(map(_pss, _with_children(pid))) / _MIB, 1) for name, pid in pids.items() if pid}


def _with_children(pid: int) -> list[int]:
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def _pss(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except psutil.NoSuchProcess:  # it has ended
        return 0


def waiting(product: Product) -> dict[str, float]:
    """Events that each consumer is behind by, and what waits in the outbox: rows, and seconds of the oldest."""

    async def ask() -> dict[str, float]:
        settings = read_settings({n: v for n, v in product.environment.items() if not n.startswith("OTEL")})
        async with database(settings) as pool:
            behind = await standings(settings.kafka_client(), pool, catalogued_groups())
            outbox = await outbox_backlog(pool, rows_max=_FEW_ROWS, seconds_max=30)
        return {
            **{group: sum(one.events for one in places) for group, places in behind.items()},
            "outbox rows": outbox.rows,
            "outbox seconds": round(outbox.age_seconds, 1),
        }

    return asyncio.run(ask())


def rows(product: Product) -> dict[str, int]:
    """The rows of every table of PostgreSQL, counted."""
    names = [
        str(row["relname"])
        for row in product.sql("SELECT relname FROM pg_stat_user_tables WHERE schemaname = 'public'")
    ]
    counted = " UNION ALL ".join(f"SELECT '{name}' AS name, count(*) AS n FROM {name}" for name in names)
    return {str(row["name"]): int(row["n"]) for row in product.sql(counted)}


def redis_keys(product: Product) -> dict[str, int]:
    """Keys of each Redis: those that expire by themselves, and those that are kept."""
    found = {}
    for name in ("REDIS_URL", "REDIS_CACHE_URL"):
        with Redis.from_url(product.environment[name]) as client:
            space = client.info("keyspace").get(f"db{client.get_connection_kwargs().get('db', 0)}", {})
        found[f"{name} expiring"] = int(space.get("expires", 0))
        found[f"{name} kept"] = int(space.get("keys", 0)) - int(space.get("expires", 0))
    return found


def folder_mib(folder: Path) -> float:
    """What the files of a folder take; 0 without one."""
    sizes = [_size(path) for path in folder.rglob("*")]
    return round(sum(sizes) / _MIB, 2)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0
