"""Reads of pages that have not changed: requests a second, latency and Redis commands, beside peers.

Three of our pages: the table of the bundled season (`highwater`), which memory holds; the matches in play of that season,
which memory holds too and whose reads Redis counts by address; the feed of a user, whose version is in Redis. The peers hold
the bytes of the table and, if the headers can be chosen, send the same ones; each has one worker, all run side by side, idle
while another is measured, and are queried in turn in every run. Ours is the whole product with all its roles. In a mix every
tenth request is answered with the page. `two workers` is a second API beside the first, each with half of the connections;
Varnish is loaded in the same way. `lease held back` keeps the API from holding its lease on copies in memory, by a lock on
the table of leases, so that every request queries Redis. Processor time of the server per request is the same on a busy
machine, unlike rates and latencies.

All requests come from one address, so the limit of live pages is lifted; the cost of counting stays, but one list of times is
longer than any in production.
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
from typing import Any, TypeAlias

import asyncpg
import psutil
import redis

from highwater.api.cli.sample import SEASON
from highwater.schemas.envelope import iso_from_ms
from highwater.streams.clock import ProductClock
from tests.bench import data, http_peers, wrk
from tests.bench.figures import Figure, figure
from tests.bench.league_stack import TABLE, league_product, load_season, steady
from tests.bench.peer_apps import VERSION_KEY
from tests.product import Product

OURS, LIVE, FEED = "highwater", "highwater, live page", "highwater, feed"
OURS_REDIS = "highwater, lease held back"
USER = "ada"
_INSIGHTS = 200
FASTAPI, STARLETTE = "FastAPI + redis-py, one GET", "Starlette, a dict (ceiling of uvicorn)"
NGINX, VARNISH = "nginx, static file", "Varnish, cached"
# What our answer says of this server alone, or of this moment.
_NOT_COPIED = ("date", "server", "content-length", "connection", "age")


@dataclass(slots=True)
class System:
    """Where a system answers, and what was measured of it."""

    urls: tuple[str, ...]
    etag: str
    pids: tuple[int, ...]
    is_mixed: bool = False
    loads: list[wrk.Load] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    redis_commands: list[float] = field(default_factory=list)


# What is measured, and of which system.
Systems: TypeAlias = dict[tuple[str, str], System]
UNCHANGED, MIX, TWO = "304", "9 x 304, 1 x 200", "304, two workers"


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
    live = {"HIGHWATER_LIVE_REQUESTS_MAX": "1000000"}
    with tempfile.TemporaryDirectory(prefix="highwater-peers-") as folder, league_product(**live) as product:
        load_season(product)
        _load_feed(product)
        ours = steady(product)
        with (
            _peers(Path(folder), product, ours.content, ours.headers) as peers,
            _second_api(product, Path(folder)) as second,
        ):
            systems = _systems(product, peers, second)
            for _ in range(runs):
                for (_, name), system in systems.items():
                    with _lease_held_back(product) if name == OURS_REDIS else contextlib.nullcontext():
                        _measure(system, Path(folder), product.environment["REDIS_URL"])
    return _figures(systems)


def _systems(product: Product, peers: Mapping[str, http_peers.Peer], second: http_peers.Peer) -> Systems:
    """All that is measured, in the order in which it is."""
    first = http_peers.Peer(str(product.http.base_url).rstrip("/"), product.role_pid("api"))
    paths = {OURS: TABLE, LIVE: f"/api/league/{SEASON}/stats/live", FEED: f"/api/users/{USER}/feed"}
    tags = {name: steady(product, path).headers["etag"] for name, path in paths.items()}
    found: Systems = {}

    def add(what: str, name: str, *apis: http_peers.Peer) -> None:
        path = paths.get(name, TABLE if name == OURS_REDIS else "")
        etag = tags.get(name) or (tags[OURS] if name == OURS_REDIS else _etag_of(apis[0].url))
        urls, pids = tuple(f"{one.url}{path}" for one in apis), tuple(dict.fromkeys(one.pid for one in apis))
        found[what, name] = System(urls, etag, pids, is_mixed=what == MIX)

    for name in paths:
        add(UNCHANGED, name, first)
    for name, peer in peers.items():
        add(UNCHANGED, name, peer)
    add(UNCHANGED, OURS_REDIS, first)
    for name in paths:
        add(MIX, name, first)
        add(TWO, name, first, second)
    if VARNISH in peers:
        add(MIX, VARNISH, peers[VARNISH])
        add(TWO, VARNISH, peers[VARNISH], peers[VARNISH])
    return found


def _load_feed(product: Product) -> None:
    """A user with a feed of a few clusters."""
    product.subscribe(USER, ["bench"])
    now = iso_from_ms(ProductClock()())
    product.publish(
        "feeds.insight-ingested",
        (
            {**line, "insight_id": f"bench-{number}", "channel_id": "bench", "ts": now}
            for number, line in enumerate(data.insights()[:_INSIGHTS])
        ),
    )
    product.until(lambda: product.pending(USER)["pending"] == _INSIGHTS, "the insights do not arrive")
    product.http.post(f"/api/users/{USER}/rebuild").raise_for_status()
    product.until(lambda: product.pending(USER)["cluster_version"] >= 1, "the feed has no clusters", 120)


@contextlib.contextmanager
def _second_api(product: Product, folder: Path) -> Iterator[http_peers.Peer]:
    """Another API of the same product."""
    port, log = http_peers.free_port(), folder / "api.log"
    env = {**product.environment, "HIGHWATER_PORT": str(port)}
    with http_peers.child([str(Path(sys.executable).parent / "highwater"), "api"], log, env) as pid:
        url = f"http://127.0.0.1:{port}"
        http_peers.until_answers(f"{url}/readyz", log)
        for path in (TABLE, f"/api/league/{SEASON}/stats/live"):
            http_peers.until_answers(url + path, log)
        yield http_peers.Peer(url, pid)


@contextlib.contextmanager
def _peers(
    folder: Path, product: Product, body: bytes, answered: Mapping[str, str]
) -> Iterator[dict[str, http_peers.Peer]]:
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
            found[name] = peer
        if "nginx" not in missing:
            peer = running.enter_context(http_peers.nginx(folder, body))
            found[NGINX] = peer
            if "Varnish" not in missing:
                found[VARNISH] = running.enter_context(http_peers.varnish(folder, peer.url))
        yield found


def _etag_of(url: str) -> str:
    etag: str = http_peers.until_answers(url, Path("/dev/null")).headers["etag"]
    return etag


def _measure(system: System, folder: Path, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as store:
        commands, cpu_seconds = _commands(store), sum(map(_cpu_seconds, system.pids))
        load = wrk.measure(system.urls, system.etag, folder, is_mixed=system.is_mixed, is_warm=bool(system.loads))
        system.redis_commands.append((_commands(store) - commands) / load.answered)
        system.cpu_us.append((sum(map(_cpu_seconds, system.pids)) - cpu_seconds) * 1_000_000 / load.answered)
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


def _figures(systems: Systems) -> list[Figure]:
    found: list[Figure] = []
    for (what, name), system in systems.items():
        loads = system.loads
        found += [
            figure(what, name, "requests/s", [round(load.requests_per_second) for load in loads]),
            figure(f"{what} p50", name, "ms", [load.p50_ms for load in loads]),
            figure(f"{what} p99", name, "ms", [load.p99_ms for load in loads]),
            figure(f"{what} CPU", name, "us a request", system.cpu_us),
            figure(f"{what} Redis commands", name, "a request", system.redis_commands),
        ]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    for one in run(parser.parse_args().runs):
        print(json.dumps(one))
