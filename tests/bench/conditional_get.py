"""A read of a page that has not changed: requests a second, latency and Redis commands of a 304, beside its peers.

The object is the table of the bundled season. Every system holds the same bytes and, where it is ours to choose, sends the same
headers; each has one worker, all run side by side, idle while another is measured, and are asked in turn in every run. Ours is
the whole product with all its roles. `ours, lease held back` keeps the API from holding its lease on copies in memory, by a lock
on the table of leases, so that every request asks Redis. Processor time of the server a request says the same on a busy machine,
where rates and latencies do not.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import redis

from tests.bench import http_peers, wrk
from tests.bench.figures import Figure, figure
from tests.bench.league_stack import TABLE, league_product, load_season, steady
from tests.bench.peer_apps import VERSION_KEY
from tests.product import Product

OURS, OURS_REDIS = "highwater", "highwater, lease held back"
FASTAPI, STARLETTE = "FastAPI + redis-py, one GET", "Starlette, a dict (ceiling of uvicorn)"
NGINX, VARNISH = "nginx, static file", "Varnish, cached"
# What our answer says of this server alone, or of this moment.
_NOT_COPIED = ("date", "server", "content-length", "connection", "age")


@dataclass(slots=True)
class System:
    """Where a system answers, and what was measured of it."""

    url: str
    etag: str
    pid: int
    loads: list[wrk.Load] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    redis_commands: list[float] = field(default_factory=list)


def run(runs: int = 3) -> list[Figure]:
    """All figures; the systems' runs alternate.

    Raises:
        CommandFailedError: wrk is not installed.
    """
    if not wrk.is_installed():
        from highwater.api.command.command import CommandFailedError

        raise CommandFailedError(wrk.INSTALL)
    for name in http_peers.missing():
        print(f"{name} is not installed and is left out: apt-get install {name.lower()}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="highwater-peers-") as folder, league_product() as product:
        load_season(product)
        ours = steady(product)
        with _peers(Path(folder), product, ours.content, ours.headers) as peers:
            url, etag = f"{str(product.http.base_url).rstrip('/')}{TABLE}", ours.headers["etag"]
            pid = product.role_pid("api")
            systems = {OURS: System(url, etag, pid), **peers, OURS_REDIS: System(url, etag, pid)}
            for _ in range(runs):
                for name, system in systems.items():
                    with _lease_held_back(product) if name == OURS_REDIS else contextlib.nullcontext():
                        _measure(system, Path(folder), product.environment["REDIS_URL"])
    return _figures(systems)


@contextlib.contextmanager
def _peers(folder: Path, product: Product, body: bytes, answered: Mapping[str, str]) -> Iterator[dict[str, System]]:
    """Every peer that is installed, running."""
    url = product.environment["REDIS_URL"]
    etag = answered["etag"]
    headers = {name: value for name, value in answered.items() if name not in _NOT_COPIED} | {"ETag": etag}
    headers.pop("etag", None)
    missing = http_peers.missing()
    with contextlib.ExitStack() as running, redis.Redis.from_url(url) as store:
        store.set(VERSION_KEY, etag)
        found = {}
        for name, app in ((FASTAPI, "fastapi"), (STARLETTE, "starlette")):
            peer = running.enter_context(http_peers.peer_app(app, folder, body, headers, url))
            found[name] = System(peer.url, etag, peer.pid)
        if "nginx" not in missing:
            peer = running.enter_context(http_peers.nginx(folder, body))
            found[NGINX] = System(peer.url, _etag_of(peer.url), peer.pid)
            if "Varnish" not in missing:
                peer = running.enter_context(http_peers.varnish(folder, peer.url))
                found[VARNISH] = System(peer.url, _etag_of(peer.url), peer.pid)
        yield found


def _etag_of(url: str) -> str:
    etag: str = http_peers.until_answers(url, Path("/dev/null")).headers["etag"]
    return etag


def _measure(system: System, folder: Path, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as store:
        commands, cpu_seconds = _commands(store), _cpu_seconds(system.pid)
        load = wrk.measure(system.url, system.etag, folder)
        system.redis_commands.append((_commands(store) - commands) / load.answered)
        system.cpu_us.append((_cpu_seconds(system.pid) - cpu_seconds) * 1_000_000 / load.answered)
    system.loads.append(load)


def _commands(store: Any) -> int:
    """How many commands Redis has carried out, INFO aside."""
    return sum(told["calls"] for name, told in store.info("commandstats").items() if name != "cmdstat_info")


def _cpu_seconds(pid: int) -> float:
    """What a process and its children have used of the processor."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


@contextlib.contextmanager
def _lease_held_back(product: Product) -> Iterator[None]:
    """No process can renew its lease on copies: those held end within half a second, and every read asks Redis."""
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(product.environment["DATABASE_URL"]))
    try:
        loop.run_until_complete(connection.execute("BEGIN; LOCK TABLE copy_leases IN ACCESS EXCLUSIVE MODE"))
        product.until(lambda: not _is_lease_held(product), "the lease does not end")
        yield
    finally:
        loop.run_until_complete(connection.close())
        loop.close()


def _is_lease_held(product: Product) -> bool:
    return "\nhighwater_lease_held 1.0\n" in product.get("/metrics").text


def _figures(systems: Mapping[str, System]) -> list[Figure]:
    found: list[Figure] = []
    for name, system in systems.items():
        loads = system.loads
        found += [
            figure("304", name, "requests/s", [round(load.requests_per_second) for load in loads]),
            figure("304 p50", name, "ms", [load.p50_ms for load in loads]),
            figure("304 p99", name, "ms", [load.p99_ms for load in loads]),
            figure("304 CPU", name, "us a request", system.cpu_us),
            figure("304 Redis commands", name, "a request", system.redis_commands),
        ]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    for one in run(parser.parse_args().runs):
        print(json.dumps(one))
