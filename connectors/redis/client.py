"""How Redis is reached: a single server, or a Redis Cluster (R2.1), by the scheme of its address.

Invariant: every client of Redis is built here. `redis://` and `rediss://` name one server; `redis+cluster://` and
`rediss+cluster://` name a cluster by one or more of its nodes, comma-separated, of which one has to answer: the others are
learned from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    ClusterError,
    RedisClusterException,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from highwater.schemas.errors import AccessRefusedError, ConfigurationError, UnavailableError
from highwater.streams.access import tls_refusal

# Redis answers in well under a millisecond; one that needs this long is as good as away.
TIMEOUT_SECONDS = 0.25
# With TLS a connection is made in three round trips and some arithmetic.
HANDSHAKE_SECONDS = 1.0
# Of one process at once to each server (R4.35: six to eight, which stay open); callers share them in turns of well under a
# millisecond.
CONNECTIONS_MAX = 8
# Beyond the turns of callers a node of a cluster is asked for the map of the cluster, and holds the subscriptions.
_CONNECTIONS_BESIDE = 8
PORT_DEFAULT = 6379

# Scheme of a cluster's address -> that of one server's.
_CLUSTER_SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}

# What says that a server, or a part of a cluster, does not answer.
FAILURES = (RedisError, RedisClusterException, OSError, TimeoutError)


class Address(NamedTuple):
    """Where Redis is: the URL of a server as the client library reads it, and the further nodes of a cluster."""

    url: str
    is_cluster: bool = False
    others: Sequence[tuple[str, int]] = ()


def read_address(url: str) -> Address:
    """What an address names.

    Raises:
        ValueError: a node of a cluster has no host, or a port that is none.
    """
    parts = urlsplit(url)
    scheme = _CLUSTER_SCHEMES.get(parts.scheme)
    if scheme is None:
        return Address(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    first, *others = [_host_and_port(node) for node in hosts.split(",")]
    netloc = f"{credentials}{at}{_bracketed(first[0])}:{first[1]}"
    # Number 0 is the only one of a cluster.
    return Address(urlunsplit((scheme, netloc, "/0", parts.query, "")), is_cluster=True, others=others)


def _host_and_port(node: str) -> tuple[str, int]:
    found = urlsplit(f"//{node}")
    if not found.hostname:
        raise ValueError(f"a node of a Redis Cluster is HOST:PORT, not {node!r}")
    return found.hostname, found.port or PORT_DEFAULT


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def open_client(url: str, setting: str, connections_max: int) -> tuple[Address, Any]:
    """What an address names, and a client of it; nothing is dialled yet.

    Raises:
        ConfigurationError: it names nothing; `setting` is where it stands.
    """
    try:
        address = read_address(url)
        return address, _client_of(address, connections_max)
    except (ValueError, TypeError, RedisClusterException) as error:
        raise ConfigurationError(f"{setting} is not a Redis address: {error}") from error


def _client_of(address: Address, connections_max: int) -> Any:
    options: dict[str, Any] = {
        "socket_timeout": TIMEOUT_SECONDS,
        "socket_connect_timeout": HANDSHAKE_SECONDS if address.url.startswith("rediss://") else TIMEOUT_SECONDS,
        "retry": Retry(NoBackoff(), 0),  # a repeat is the caller's business; a hidden one triples the wait
        "protocol": 2,
    }
    if address.is_cluster:
        return RedisCluster.from_url(
            address.url,
            startup_nodes=[ClusterNode(host, port) for host, port in address.others],
            max_connections=connections_max + _CONNECTIONS_BESIDE,
            **options,
        )
    # A call that finds all connections in use waits for one: that is no Redis that is away.
    pool = BlockingConnectionPool.from_url(
        address.url, max_connections=connections_max, timeout=TIMEOUT_SECONDS, **options
    )
    return Redis.from_pool(pool)


class Script:
    """A Lua script, awaited under `RedisLink.run`, or put into a pipeline. All its keys share a hash tag."""

    def __init__(self, client: Any, body: str) -> None:
        self._body = body
        self._script: Any = None if client is None else client.register_script(body)

    def command(
        self, keys: Sequence[str], args: Sequence[str | int], *, is_known: bool
    ) -> tuple[str | int | bytes, ...]:
        """The command that runs it: by its hash, where the server is taken to know it, or with its text."""
        how = ("EVALSHA", self._script.sha) if is_known else ("EVAL", self._body)
        return (*how, len(keys), *keys, *args)

    async def __call__(self, *, keys: Sequence[str], args: Sequence[Any], client: Any = None) -> Any:
        """Run it; with a pipeline as `client`, at its turn in that."""
        if client is not None:
            # A pipeline over several servers cannot ask each first whether it knows the script. One over a single server can, but
            # when that question gets no answer the library keeps the pipeline's connection for good.
            return client.execute_command("EVAL", self._body, len(keys), *keys, *args)
        return await self._script(keys=keys, args=args)


async def replies_of(client: Any, commands: Sequence[tuple[str | int | bytes, ...]], *, is_cluster: bool) -> list[Any]:
    """What Redis answers to commands, in one round trip; one that it refuses is answered with its error.

    Of one server as the client's own pipeline does it, without what that does beside: a decision alone takes half as long. The
    connection closes itself when an answer is not waited for to its end.
    """
    if not commands:
        return []
    if is_cluster:
        pipeline = client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        found: list[Any] = await pipeline.execute(raise_on_error=False)
        return found
    pool = client.connection_pool
    connection = await pool.get_connection()
    try:
        await connection.send_packed_command(connection.pack_commands(commands))
        return [await _reply(connection) for _ in commands]
    finally:
        await pool.release(connection)


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


async def ask_once(url: str, seconds: float, setting: str = "REDIS_URL") -> str:
    """The version of the Redis at an address, asked for over a connection of its own.

    Raises:
        AccessRefusedError: it refuses the credentials, or is not trusted.
        UnavailableError: it does not answer.
    """
    client: Any = None
    try:
        address = read_address(url)
        client = Redis.from_url(address.url, socket_timeout=seconds, socket_connect_timeout=seconds)
        found = await client.info()
        problem = address_problem(address, found, setting)
        if problem is not None:
            raise UnavailableError(problem)
        return str(found["redis_version"])
    except (*FAILURES, ValueError) as error:
        kind = AccessRefusedError if _is_refusal(error) else UnavailableError
        raise kind(failure_reason(error, setting)) from error
    finally:
        if client is not None:
            await client.aclose()


def address_problem(address: Address, info: dict[str, Any], setting: str) -> str | None:
    """What is wrong with the scheme of an address, by what its server says of itself; None: nothing."""
    is_node = bool(int(info.get("cluster_enabled", 0)))
    if is_node == address.is_cluster:
        return None
    if is_node:
        return f"{setting} names a node of a Redis Cluster: let it begin with redis+cluster:// (rediss+cluster:// with TLS)"
    return f"{setting} names a cluster, and the server is none: let it begin with redis:// (rediss:// with TLS)"


def failure_reason(error: BaseException, setting: str) -> str:
    """Why a call failed, in one line; where the address of `setting` is to blame, with its name."""
    untrusted = tls_refusal(error)
    if untrusted is not None:
        return f"the server of {setting} is not trusted (ssl_ca_certs): {untrusted}"
    if isinstance(error, AuthenticationError):
        return f"{setting} is refused: {error}"
    if isinstance(error, RedisClusterException) and isinstance(error.__cause__, Exception):
        return failure_reason(error.__cause__, setting)  # of the last node that was asked for the map
    return str(error) or type(error).__name__


def is_failure(error: BaseException) -> bool:
    """Whether an error says that Redis, or a part of it, does not answer; else it answers, but not this."""
    return isinstance(error, ClusterError) or not isinstance(error, ResponseError)  # the first: a part has no primary


def is_exhausted(error: BaseException) -> bool:
    """Whether a caller waited in vain for a connection; the client has no class for it."""
    return isinstance(error, RedisConnectionError) and isinstance(error.__cause__, TimeoutError)


def _is_refusal(error: BaseException) -> bool:
    return isinstance(error, AuthenticationError) or tls_refusal(error) is not None
