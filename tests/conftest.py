"""The real parts that every tier above unit runs on: one embedded stack a session, topics and tables made once."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import hypothesis
import pytest

from highwater.deploy.local.part import Addresses
from highwater.deploy.local.stack import LocalStack
from highwater.schemas.errors import UnavailableError
from highwater.streams.settings import Settings, read_settings
from tests.limits import Limits, LongTests

# Leaders are chosen within a second; this long on a machine that others keep busy.
_LEADERS_SECONDS_MAX = 60

# As every process of the product has it (api/cli/main.py); numpy is not imported yet.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Each HTTP client would load the public authorities, which takes 20 ms, and every server of a test is on this machine.
_transport = vars(httpx2._transports.default)
_transport["create_ssl_context"] = functools.cache(_transport["create_ssl_context"])

# No test fails for the machine's speed.
hypothesis.settings.register_profile("highwater", deadline=None)
hypothesis.settings.load_profile("highwater")

# A shell starts background jobs with SIGINT ignored, and children inherit that; tests interrupt commands.
signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Stack:
    """Addresses of the session's parts, and the stack itself for tests that stop and start them."""

    kafka: str
    schema_registry: str
    database: str
    redis: str
    local: LocalStack
    redis_cache: str = ""  # of tests that say so: others have one Redis hold everything

    def environment(self, **more: str) -> dict[str, str]:
        """An environment for a child process that uses these parts."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HIGHWATER_")}
        return {
            **clean,
            "KAFKA_BOOTSTRAP_SERVERS": self.kafka,
            "SCHEMA_REGISTRY_URL": self.schema_registry,
            "DATABASE_URL": self.database,
            "REDIS_URL": self.redis,
            "HIGHWATER_EMBEDDER": "builtin",  # the model takes a hundred times as long; its own tests ask for it
            **more,
        }

    def settings(self, **more: Any) -> Settings:
        """Settings that use these parts; `more` names settings as in the environment."""
        named = {name: str(value) for name, value in more.items()}
        return read_settings(
            {
                "KAFKA_BOOTSTRAP_SERVERS": self.kafka,
                "SCHEMA_REGISTRY_URL": self.schema_registry,
                "DATABASE_URL": self.database,
                "REDIS_URL": self.redis,
                "HIGHWATER_EMBEDDER": "service" if "EMBEDDINGS_BASE_URL" in named else "builtin",
                # No relay runs beside most tests, so what they store is never taken out of the outbox.
                "HIGHWATER_SHED_OUTBOX_SECONDS": "86400",
                **named,
            }
        )


async def _init(settings: Settings) -> None:
    from highwater.connectors.kafka.admin import Admin
    from highwater.connectors.kafka.registry import Registry
    from highwater.connectors.postgres.migrate import migrate
    from highwater.connectors.postgres.pool import open_pool
    from highwater.schemas.topics import TOPICS, all_topics

    async with await open_pool(settings.database) as pool:
        await migrate(pool)
    admin = Admin(settings.kafka_client())
    await admin.ensure_topics(all_topics(), replication_factor=1)
    # A partition that was just created has no leader for a moment, and a read of its end is refused.
    places = [(topic.name, number) for topic in all_topics() for number in range(topic.partitions)]
    async with asyncio.timeout(_LEADERS_SECONDS_MAX):
        while True:
            try:
                await admin.log_ranges(places)
                break
            except UnavailableError:
                await asyncio.sleep(0.05)
    await Registry(settings.registry_access()).register(TOPICS.values())


# What is running for the session, by fixture, and the test after which each has no user. A product that ticks takes a third
# of the machine from the tests that come after it, so what nobody needs any more is ended before the end of the session.
RUNNING: dict[str, contextlib.ExitStack] = {}
_LAST_USER: dict[str, str] = {}
_ENDED_EARLY = ("product", "scripted", "own_stack", "stack")


def pytest_configure(config: pytest.Config) -> None:
    """Bound the whole run, its exit included; nothing is captured yet."""
    config.pluginmanager.register(Limits(os.dup(2)))
    until = os.environ.get("LONG_TESTS_UNTIL")
    if until is not None:
        config.pluginmanager.register(LongTests(1_000 * int(until)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note the last test of the last file that uses each: fixtures of a file use it until the file has ended."""
    last_of_file: dict[Path, str] = {}
    file_of: dict[str, Path] = {}
    for item in session.items:
        last_of_file[item.path] = item.nodeid
        file_of |= dict.fromkeys(set(_ENDED_EARLY).intersection(getattr(item, "fixturenames", ())), item.path)
    _LAST_USER.update({name: last_of_file[path] for name, path in file_of.items()})


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid: str) -> None:
    """End what was used for the last time."""
    for name, last in _LAST_USER.items():
        if nodeid == last and name in RUNNING:
            RUNNING.pop(name).close()


# Seconds of each file of tests, with what its fixtures took; those who wait for the gate see where its time goes.
_SECONDS: collections.Counter[str] = collections.Counter()
_SLOWEST_SHOWN = 25


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what the tests of a file take."""
    _SECONDS[report.nodeid.partition("::")[0]] += report.duration


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """List the slowest files, if the slowest tests are requested (`--durations`)."""
    if config.getoption("durations"):
        terminalreporter.section("slowest files")
        for name, seconds in _SECONDS.most_common(_SLOWEST_SHOWN):
            terminalreporter.write_line(f"{seconds:7.1f}s {name}")


def stack_of(data_dir: Path, name: str) -> LocalStack:
    """A stack of one part alone."""
    local = LocalStack(data_dir)
    for other in local.names:
        if other != name:
            del local._parts[other]
    return local


@pytest.fixture(scope="session")
def shared_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """The registry of every stack: schemas are the same for all, no test stops it, and it takes as much to start as a broker."""
    with stack_of(tmp_path_factory.mktemp("registry") / "data", "schema_registry") as local:
        yield local.addresses


@pytest.fixture(scope="session")
def product(shared_registry: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The whole product as `highwater up` runs it, on parts of its own that a test may stop and start."""
    from tests.collector import Collector
    from tests.product import Product

    folder: Path = tmp_path_factory.mktemp("product")
    with contextlib.ExitStack() as running:
        RUNNING["product"] = running
        local = running.enter_context(LocalStack(folder / "parts", shared_registry))
        collector = running.enter_context(Collector())
        yield running.enter_context(Product(folder / "data", local, collector))


@pytest.fixture(scope="session")
def stack(shared_registry: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Kafka, registry, PostgreSQL and Redis, with topics, schemas and tables in place."""
    data_dir: Path = tmp_path_factory.mktemp("stack") / "data"
    with contextlib.ExitStack() as running:
        RUNNING["stack"] = running
        local = running.enter_context(LocalStack(data_dir, shared_registry))
        found = local.addresses
        named = {name: address or "" for name, address in found.by_name().items()}
        made = Stack(**named, local=local)
        asyncio.run(_init(made.settings()))
        yield made
