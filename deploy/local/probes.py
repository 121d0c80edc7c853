"""Checks whether a service answers, as its clients use it: for metadata, a list, a query, a ping.

Each probe returns None if the service answers and one line with the reason otherwise; it never waits longer than its
timeout.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import asyncpg
import redis
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from highwater.deploy.local.part import Addresses, service_of


def probe_kafka(address: str, timeout_seconds: float, options: Mapping[str, str] | None = None) -> str | None:
    """Request the cluster's metadata from the brokers."""
    # log_level 0: an unavailable broker is an expected answer, not an error for stderr.
    admin = AdminClient({**(options or {}), "bootstrap.servers": address, "log_level": 0})
    try:
        metadata = admin.list_topics(timeout=timeout_seconds)
    except KafkaException as error:
        return f"no metadata: {error.args[0].str()}"
    return None if metadata.brokers else "the metadata names no broker"


def probe_registry(address: str, timeout_seconds: float, files: Mapping[str, str] | None = None) -> str | None:
    """Request the registry's subjects; `files` are the PEM files `ca`, `certificate` and `key`."""
    if not files:
        return probe_url(f"{address.rstrip('/')}/subjects", timeout_seconds)
    try:
        context = ssl.create_default_context(cafile=files.get("ca"))
        if "certificate" in files:
            context.load_cert_chain(files["certificate"], files.get("key"))
    except OSError as error:
        return _line(error)
    return _probed(f"{address.rstrip('/')}/subjects", timeout_seconds, context)


def probe_database(address: str, timeout_seconds: float) -> str | None:
    """Run one query."""

    async def ask() -> None:
        async with asyncio.timeout(timeout_seconds):
            connection = await asyncpg.connect(address, timeout=timeout_seconds)
            try:
                await connection.fetchval("SELECT 1")
            finally:
                await connection.close()

    try:
        with ThreadPoolExecutor(1) as pool:  # in its own thread: the caller's may be running an event loop already
            pool.submit(asyncio.run, ask()).result()
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return _line(error)
    return None


def probe_redis(address: str, timeout_seconds: float) -> str | None:
    """Ping Redis; for a cluster the first node of its address."""
    scheme, mark, rest = address.partition("+cluster://")
    server = f"{scheme}://{_first_node(rest)}" if mark else address
    try:
        with redis.Redis.from_url(
            server, socket_timeout=timeout_seconds, socket_connect_timeout=timeout_seconds
        ) as client:
            client.ping()
    except (redis.RedisError, ValueError) as error:
        return _line(error)
    return None


def _first_node(rest: str) -> str:
    """Return the rest of a cluster's address after the scheme, with only its first node."""
    nodes, question, options = rest.partition("?")
    credentials, at, hosts = nodes.rpartition("@")
    return f"{credentials}{at}{hosts.partition(',')[0].rstrip('/')}{question}{options}"


# Errors of an invalid URL, and of a failed request.
_UNANSWERED = (OSError, HTTPException, ValueError)


class _Answer(NamedTuple):
    status: int
    body: bytes


def probe_url(url: str, timeout_seconds: float, certificate: str | None = None) -> str | None:
    """Request a URL and expect 200; an https server must have the certificate in that file, with any name."""
    try:
        context = None if certificate is None else _pinned(certificate)
    except OSError as error:
        return _line(error)
    return _probed(url, timeout_seconds, context)


def _probed(url: str, timeout_seconds: float, context: ssl.SSLContext | None) -> str | None:
    try:
        answer = _asked(url, timeout_seconds, context)
    except _UNANSWERED as error:
        return _line(error)
    return None if answer.status == 200 else f"{url} answered {answer.status}"


def _asked(url: str, timeout_seconds: float, context: ssl.SSLContext | None) -> _Answer:
    """Send the request by the standard library: a start sends many, and a new client each time costs more than the answer."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection = (
        HTTPSConnection(host, parts.port, timeout=timeout_seconds, context=context)
        if parts.scheme == "https"
        else HTTPConnection(host, parts.port, timeout=timeout_seconds)
    )
    headers = {}
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
    try:
        connection.request("GET", f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}", headers=headers)
        answer = connection.getresponse()
        return _Answer(answer.status, answer.read())
    finally:
        connection.close()


def _pinned(certificate: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(certificate)
    return context


def degraded_at(url: str, timeout_seconds: float, certificate: str | None = None) -> dict[str, str]:
    """Return what a ready role does not do, by name, as its `/readyz` reports; empty without an answer."""
    try:
        context = None if certificate is None else _pinned(certificate)
        found = json.loads(_asked(url, timeout_seconds, context).body).get("degraded", {})
    except (*_UNANSWERED, AttributeError):
        return {}  # it does not answer: `probe_url` reports that
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def is_answering(url: str, timeout_seconds: float, certificate: str | None = None) -> bool:
    """Return whether a URL answers in time, even with 503."""
    try:
        _asked(url, timeout_seconds, None if certificate is None else _pinned(certificate))
    except _UNANSWERED:
        return False
    return True


def probe_service(name: str, addresses: Addresses, timeout_seconds: float, own: str | None = None) -> str | None:
    """Probe one of the services by its name in status; `own` is the address of one broker of several."""
    address = own or addresses.by_name()[service_of(name)]
    if address is None:
        return "has no address"
    match service_of(name):
        case "kafka":
            return probe_kafka(address, timeout_seconds, addresses.kafka_client_options)
        case "schema_registry":
            return probe_registry(address, timeout_seconds, addresses.registry_files)
        case "database":
            return probe_database(address, timeout_seconds)
        case _:
            return probe_redis(address, timeout_seconds)


def _line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
