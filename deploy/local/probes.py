"""Whether a service answers, asked as a client asks: for metadata, for a list, by a query, by a ping.

Each probe returns None when the service answers and one line that says why not otherwise; it never waits longer than
it is told.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import httpx
import redis
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from highwater.deploy.local.part import Addresses


def probe_kafka(address: str, timeout_seconds: float, options: Mapping[str, str] | None = None) -> str | None:
    """Ask the brokers for the cluster's metadata."""
    # log_level 0: a broker that is not there yet is what is being asked about, not news for stderr.
    admin = AdminClient({**(options or {}), "bootstrap.servers": address, "log_level": 0})
    try:
        metadata = admin.list_topics(timeout=timeout_seconds)
    except KafkaException as error:
        return f"no metadata: {error.args[0].str()}"
    return None if metadata.brokers else "the metadata names no broker"


def probe_registry(address: str, timeout_seconds: float) -> str | None:
    """Ask the registry for its subjects."""
    return probe_url(f"{address.rstrip('/')}/subjects", timeout_seconds)


def probe_database(address: str, timeout_seconds: float) -> str | None:
    """Ask the database one question."""

    async def ask() -> None:
        async with asyncio.timeout(timeout_seconds):
            connection = await asyncpg.connect(address, timeout=timeout_seconds)
            try:
                await connection.fetchval("SELECT 1")
            finally:
                await connection.close()

    try:
        with ThreadPoolExecutor(1) as pool:  # a thread's own: the caller's may be running an event loop already
            pool.submit(asyncio.run, ask()).result()
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return _line(error)
    return None


def probe_redis(address: str, timeout_seconds: float) -> str | None:
    """Ping Redis."""
    try:
        with redis.Redis.from_url(
            address, socket_timeout=timeout_seconds, socket_connect_timeout=timeout_seconds
        ) as client:
            client.ping()
    except (redis.RedisError, ValueError) as error:
        return _line(error)
    return None


def probe_url(url: str, timeout_seconds: float, certificate: str | None = None) -> str | None:
    """Ask a URL for a 200; whoever answers an https one has to hold the certificate in that file, whatever its name."""
    try:
        verify = True if certificate is None else _pinned(certificate)
        # trust_env off: a proxy of the environment is not on the way to this machine's own ports.
        answer = httpx.get(url, timeout=timeout_seconds, trust_env=False, verify=verify)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return _line(error)
    return None if answer.status_code == 200 else f"{url} answered {answer.status_code}"


def _pinned(certificate: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(certificate)
    return context


def probe_service(name: str, addresses: Addresses, timeout_seconds: float) -> str | None:
    """Probe one of the four services by its name in status."""
    address = addresses.by_name()[name]
    if address is None:
        return "has no address"
    match name:
        case "kafka":
            return probe_kafka(address, timeout_seconds, addresses.kafka_client_options)
        case "schema_registry":
            return probe_registry(address, timeout_seconds)
        case "database":
            return probe_database(address, timeout_seconds)
        case _:
            return probe_redis(address, timeout_seconds)


def _line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
