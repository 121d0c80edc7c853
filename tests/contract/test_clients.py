"""Clients of the services are built where their security is: one that is built elsewhere would do without TLS and credentials."""

from __future__ import annotations

import functools
import re

import pytest

from tests import ROOT

# Constructors of connections -> the modules that may call them, with the security of the settings.
BUILT_IN = {
    "asyncpg.connect": {"connectors/postgres/pool.py"},
    "asyncpg.create_pool": {"connectors/postgres/pool.py"},
    "Redis.from_url": {"connectors/redis/client.py"},
    "RedisCluster.from_url": {"connectors/redis/client.py"},
    "BlockingConnectionPool.from_url": {"connectors/redis/client.py"},
    "S3Store.from_url": {"connectors/redis/objects.py"},
    "HTTPConnection": {"connectors/kafka/registry_http.py"},
    "HTTPSConnection": {"connectors/kafka/registry_http.py"},
    "faust.App": {"streams/app.py"},
    "AIOKafkaConsumer": {"streams/preflight.py"},
    "AIOKafkaAdminClient": {"streams/preflight.py"},
    "AIOKafkaClient": {"connectors/kafka/log_dirs.py"},
    "AIOKafkaConnection": {"streams/refusal.py"},
}
# Clients of librdkafka use the result of `Settings.kafka_client` everywhere: no other options name an address.
ADDRESS_OPTIONS = {"bootstrap.servers": {"streams/access.py", "api/cli/stack.py"}}


@functools.cache
def _texts() -> dict[str, str]:
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for layer in ("streams", "connectors", "api")
        for path in (ROOT / layer).rglob("*.py")
    }


def _saying(pattern: str) -> set[str]:
    return {name for name, text in _texts().items() if re.search(pattern, text)}


@pytest.mark.parametrize("call", sorted(BUILT_IN))
def test_a_client_is_built_in_its_place(call: str):
    """Nowhere else, and there it is."""
    assert BUILT_IN[call] == _saying(rf"\b{re.escape(call)}\(")


@pytest.mark.parametrize("option", sorted(ADDRESS_OPTIONS))
def test_only_the_access_names_the_brokers(option: str):
    """A client with an address of its own would have no credentials."""
    assert ADDRESS_OPTIONS[option] == _saying(re.escape(f'"{option}"'))
