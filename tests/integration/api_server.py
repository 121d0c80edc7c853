"""A real API on a free port over the session's parts, with a database and a Redis number of its own, and seeds for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import asyncpg
import httpx2

from highwater.api.app import create_app, server_of
from highwater.connectors.feeds.statements import QUERIES as FEEDS
from highwater.connectors.pages import surrogate_keys
from highwater.connectors.pages.statements import QUERIES
from highwater.schemas.positions import Position, parse_position
from highwater.schemas.topics import TOPICS
from highwater.streams.access import trusts_nobody
from highwater.streams.settings import Settings
from tests.integration.documented import check_answer

DEADLINE_SECONDS = 60.0
# Versions whose changes are remembered, as rebuilt by `Seeds.rebuild`.
VERSIONS_KEPT = 5
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


class MovableClock:
    """The product's clock, moved by the test."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def __call__(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000 + self.offset_ms


@dataclass
class Api:
    """A running API."""

    url: str
    app: Any
    clock: MovableClock
    server: Any
    thread: threading.Thread

    def stop(self) -> None:
        """Stop the server, as SIGTERM does."""
        self.server.should_exit = True

    def client(self, token: str | None = None) -> httpx2.AsyncClient:
        """A client of it, whose answers are held against the OpenAPI document."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        hooks = {"response": [check_answer]}
        return httpx2.AsyncClient(
            base_url=self.url, headers=headers, timeout=30.0, verify=trusts_nobody(), event_hooks=hooks
        )

    async def get(self, path: str, token: str | None = None, *, params: Any = None, **headers: str) -> httpx2.Response:
        """GET, with a client of its own; `_` in the name of a header stands for `-`."""
        async with self.client(token) as client:
            return await client.get(path, params=params, headers=_named(headers))

    async def post(self, path: str, body: Any = None, token: str | None = None, **headers: str) -> httpx2.Response:
        """POST likewise."""
        async with self.client(token) as client:
            return await client.post(path, json=body, headers=_named(headers))


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@contextlib.contextmanager
def running_api(settings: Settings, *, is_awaited: bool = True) -> Iterator[Api]:
    """Serve the API in a thread of its own until the block ends."""
    clock = MovableClock()
    app = create_app(settings, clock)
    server = server_of(app, "127.0.0.1", 0, settings=settings)
    thread = threading.Thread(target=server.run, name="api")
    thread.start()
    try:
        wait_until(lambda: server.started, "the server starts")
        port = server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        if is_awaited:
            wait_until(lambda: _is_ready(url), "the API is ready")
        yield Api(url, app, clock, server, thread)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def _is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/readyz", verify=trusts_nobody()).status_code == 200
    except httpx2.TransportError:
        return False  # a loaded machine may take longer than the client waits


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    """Poll until a fact holds."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_true():
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS} s: {what}"
        time.sleep(0.02)


async def eventually(is_true: Callable[[], Awaitable[bool]], what: str) -> None:
    """Poll until a fact holds."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not await is_true():
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS} s: {what}"
        await asyncio.sleep(0.02)


class Seeds:
    """Puts into PostgreSQL what the sinks and the rebuild worker would."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def run(self, sql: str, *values: Any) -> Any:
        """One statement; its rows."""
        connection = await asyncpg.connect(self.url)
        try:
            return await connection.fetch(sql, *values)
        finally:
            await connection.close()

    async def insert(self, table: str, **columns: Any) -> None:
        """A row."""
        places = ", ".join(f"${place}" for place in range(1, len(columns) + 1))
        await self.run(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", *columns.values())

    async def change(self, table: str, named: str, name: str, **columns: Any) -> None:
        """Other values for columns of the row whose column `named` is `name`."""
        changes = ", ".join(f"{column} = ${place}" for place, column in enumerate(columns, start=2))
        await self.run(f"UPDATE {table} SET {changes} WHERE {named} = $1", name, *columns.values())

    async def account_for(self, position: Position | str, group: str | None = None) -> None:
        """The sink has been there: the group that is given, or the first that the topic has."""
        topic, partition, offset = parse_position(str(position))
        await self.run(
            'INSERT INTO positions ("group", topic, partition, topic_id, next) VALUES ($1, $2, $3, $4, $5) '
            'ON CONFLICT ("group", topic, partition) DO UPDATE SET next = excluded.next',
            group or TOPICS[topic].consumers[0], topic, partition, "x", offset + 1,
        )  # fmt: skip

    async def channel(self, channel: str, insights: int) -> list[str]:
        """Create a channel with this many insights; return their ids."""
        ids = [f"{channel}#{n}" for n in range(1, insights + 1)]
        await self.run(
            "INSERT INTO channels (channel_id, current_seq, last_insight_ts) VALUES ($1, $2, $3) "
            "ON CONFLICT (channel_id) DO UPDATE SET current_seq = excluded.current_seq",
            channel,
            insights,
            NOW,
        )
        for seq, insight_id in enumerate(ids, start=1):
            await self.run(
                "INSERT INTO insights (insight_id, channel_id, seq, ts, arrived_at, text, url, source_partition, "
                "source_offset) VALUES ($1, $2, $3, $4, $4, $5, $6, 0, $3) ON CONFLICT DO NOTHING",
                insight_id,
                channel,
                seq,
                NOW,
                f"kafka consumer {insight_id} rebalances partitions slowly",
                f"https://example.org/{seq}",
            )
        return ids

    async def user(self, user: str, channels: Sequence[str], **columns: Any) -> None:
        """A user with subscriptions and, where given, other columns."""
        await self.run("INSERT INTO user_stats (user_id) VALUES ($1) ON CONFLICT DO NOTHING", user)
        for name, value in columns.items():
            await self.run(f"UPDATE user_stats SET {name} = $2 WHERE user_id = $1", user, value)
        for channel in channels:
            await self.run("INSERT INTO subscriptions VALUES ($1, $2, true, 0) ON CONFLICT DO NOTHING", user, channel)

    async def rebuild(
        self,
        user: str,
        clusters: Sequence[dict[str, Any]],
        at: datetime = NOW,
        *,
        outside: Sequence[str] | None = (),
        outside_arrived: Sequence[int] = (),
        history: Sequence[dict[str, Any]] = (),
    ) -> int:
        """Store the next version of a user's clusters as the rebuild worker does; returns the cluster version.

        `outside` None: as it did before clusters had an identity.
        """
        connection = await asyncpg.connect(self.url)
        async with connection.transaction():
            version = await connection.fetchval(
                "INSERT INTO user_stats (user_id, cluster_version) VALUES ($1, 1) ON CONFLICT (user_id) "
                "DO UPDATE SET cluster_version = user_stats.cluster_version + 1 RETURNING cluster_version",
                user,
            )
            cause = f"feeds.rebuild-requested/0/{version}"
            places = None
            if outside is not None:
                beside = {"insight_ids": list(outside), "positions": [[9.0, 9.0] for _ in outside]}
                places = json.dumps({**beside, **({"arrived": list(outside_arrived)} if outside_arrived else {})})
            await connection.execute(
                FEEDS["insert_clusters"],
                user, version, json.dumps(list(clusters)), len(outside or ()), 10, 0, "{}", at, cause,
                None if outside is None else "built-in-0", places, None, 0, version - VERSIONS_KEPT,
                None, [], False, False,
            )  # fmt: skip
            members = [insight_id for one in clusters for insight_id in one["insight_ids"]]
            await surrogate_keys.tag_insights(connection, f"feed:{user}", version, members)
            await surrogate_keys.tag_insights(connection, f"clusters:{user}", version, [*members, *(outside or ())])
            for change in history:
                row = {"user_id": user, "cluster_version": version, "evolved_at": at, "caused_by": cause, **change}
                columns = ", ".join(f'"{name}"' for name in row)
                values = ", ".join(f"${place}" for place in range(1, len(row) + 1))
                await connection.execute(f"INSERT INTO cluster_history ({columns}) VALUES ({values})", *row.values())
            await connection.fetchrow(QUERIES["bump_version"], f"clusters:{user}", cause, at, None)
        await connection.close()
        return int(version)


def cluster(
    cluster_id: str,
    insight_ids: Sequence[str],
    *,
    since: Sequence[int] = (),
    born: int = 1,
    changed: int = 1,
    **more: Any,
) -> dict[str, Any]:
    """A cluster as the worker stores it; `since` 1 for each insight unless given, `more` any other key."""
    return {
        **old_cluster(cluster_id, insight_ids),
        "title": f"about {cluster_id}",
        "summary": f"kafka consumer {next(iter(insight_ids), '')} rebalances partitions slowly",
        "confidences": [0.75 for _ in insight_ids],
        "since": list(since) or [1 for _ in insight_ids],
        "positions": [[float(place), 1.5] for place in range(len(insight_ids))],
        "position": [2.5, 3.5],
        "radius": 1.0,
        "born_version": born,
        "changed_version": changed,
        "nearby_ids": [],
        "nearby_confidences": [],
        "written_version": 0,
        **more,
    }


def old_cluster(cluster_id: str, insight_ids: Sequence[str]) -> dict[str, Any]:
    """A cluster as the worker stored it before clusters had an identity."""
    return {
        "cluster_id": cluster_id,
        "label": f"about {cluster_id}",
        "keywords": ["kafka", "consumer"],
        "size": len(insight_ids),
        "insight_ids": list(insight_ids),
        "representative_id": insight_ids[0] if insight_ids else None,
    }


def change(cluster_id: str, kind: str, *, size: int, related: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """A change as the worker stores it; numbers are 0 unless given."""
    zeros = dict.fromkeys(("previous_size", "joined", "arrived", "left", "expired"), 0)
    named = {"cluster_id": cluster_id, "kind": kind, "label": f"{kind} {cluster_id}", "size": size, "jaccard": 0.5}
    return {**named, **zeros, "related": list(related), **more}
