"""Shared fixtures of the tests of every subsystem. A module has its own database and Redis number, with an API over them; a
file that needs another of these fixtures declares one of the same name, and may build on the one here.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.redis.link import RedisLink, open_redis
from highwater.deploy.local.part import STOP_LIMIT
from highwater.deploy.local.ports import PortBook
from highwater.deploy.local.redis import Redis as LocalRedis
from highwater.deploy.local.stack import Addresses, LocalStack
from highwater.schemas.codec import Codec
from highwater.streams.settings import Settings
from tests.conftest import RUNNING, Stack, stack_of
from tests.integration.agents import Kafka, Worker, empty
from tests.integration.api_server import Api, Seeds, running_api
from tests.integration.connecting import codec_of, surroundings
from tests.integration.databases import make_database

# Modules run one after the other, so one number serves them all; it is not the session's own, which is 0.
_REDIS_NUMBER = 1

# -- on the session's parts -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
async def context(stack: Stack) -> AsyncIterator[ProcessContext]:
    """The shared resources of the consumers of a process."""
    async with surroundings(stack) as made:
        yield made


@pytest.fixture(scope="module")
async def codec(stack: Stack) -> Codec:
    """The codec of the log."""
    return await codec_of(stack)


@pytest.fixture
def environment(stack: Stack, tmp_path: Path) -> dict[str, str]:
    """For a command: the parts' addresses, and a data folder of the test's own."""
    return stack.environment(HIGHWATER_DATA_DIR=str(tmp_path / "data"))


# -- on a database and a Redis number of the module's own -------------------------------------------------------------------


@pytest.fixture(scope="module")
async def seeds(stack: Stack, request: pytest.FixtureRequest) -> Seeds:
    """A database with our tables and no rows."""
    return Seeds(await make_database(stack.database, "_".join(request.module.__name__.split(".")[-2:])))


@pytest.fixture(scope="module")
def redis_url(stack: Stack) -> str:
    """The address of a Redis number, which is empty when the module begins."""
    url = f"{stack.redis.rsplit('/', 1)[0]}/{_REDIS_NUMBER}"
    with Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[RedisLink]:
    """A link to that Redis number, which is empty when the test begins."""
    made = await open_redis(redis_url)
    await made.client.flushdb()
    yield made
    await made.close()


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Any]:
    """A client of that Redis number, as anybody has one."""
    async with AsyncRedis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[LocalRedis]:
    """A Redis that this test may kill."""
    part = LocalRedis(tmp_path, PortBook(tmp_path))
    part.take_ports()
    part.prepare()
    part.process.start(part.command())
    yield part
    part.process.stop(STOP_LIMIT)


@pytest.fixture(scope="module")
def own_settings(stack: Stack, seeds: Seeds, redis_url: str) -> Callable[..., Settings]:
    """Makes settings with both; arguments name others as in the environment."""
    return partial(stack.settings, DATABASE_URL=seeds.url, REDIS_URL=redis_url)


@pytest.fixture(scope="module")
def api(own_settings: Callable[..., Settings]) -> Iterator[Api]:
    """An API over both that asks for no key."""
    with running_api(own_settings()) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(own_settings: Callable[..., Settings], request: pytest.FixtureRequest) -> Iterator[Api]:
    """An API over both that asks for a key; the module names them in `KEYS`."""
    with running_api(own_settings(HIGHWATER_API_KEYS=request.module.KEYS)) as running:
        yield running


@pytest.fixture
async def http(api: Api) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the module's API."""
    async with api.client() as client:
        yield client


@pytest.fixture
def api_environment(environment: dict[str, str], api: Api) -> dict[str, str]:
    """For a command that asks the module's API."""
    return {**environment, "HIGHWATER_PORT": api.url.rsplit(":", 1)[1]}


# -- on a broker beside the session's, for workers whose clock moves ----------------------------------------------------------


@pytest.fixture(scope="session")
def own_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """A broker for tests of workers: a module empties its topics, some tests stop it. No other part: a worker asks for none."""
    local = stack_of(tmp_path_factory.mktemp("parts") / "data", "kafka")
    with contextlib.ExitStack() as running:
        RUNNING["own_stack"] = running
        yield running.enter_context(local)


@pytest.fixture(scope="session")
def parts(own_stack: LocalStack) -> Addresses:
    """The addresses of that stack's parts."""
    return own_stack.addresses


@pytest.fixture(scope="module")
def shared_worker(parts: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """The worker of a module. Its tests may kill it, if they start it again, and move its clock ahead, never back."""
    empty(str(parts.kafka))
    with contextlib.closing(Worker(str(parts.kafka), tmp_path_factory.mktemp("worker"))) as shared:
        yield shared.start()


@pytest.fixture
def worker(shared_worker: Worker) -> Worker:
    """The shared worker, alive."""
    assert shared_worker.ready() == {}
    return shared_worker


@pytest.fixture
def kafka(parts: Addresses, worker: Worker) -> Iterator[Kafka]:
    """The other roles; made after the topics are."""
    with contextlib.closing(Kafka(str(parts.kafka))) as roles:
        yield roles
