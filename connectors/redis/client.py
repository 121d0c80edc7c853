"""Connects to Redis: a single server, or a Redis Cluster (R2.1), by the scheme of its address.

Invariant: every client of Redis is created here. `redis://` and `rediss://` name one server; `redis+cluster://` and
`rediss+cluster://` name a cluster by one or more of its nodes, comma-separated, of which one has to answer: the client
learns the others from it.
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

# Redis answers in well under a millisecond; one that needs this long counts as unavailable.
TIMEOUT_SECONDS = 0.25
# With TLS a connection takes three round trips and some computation.
HANDSHAKE_SECONDS = 1.0
# Connections of one process to each server (R4.35: six to eight, which stay open); callers share them in turns of well
# under a millisecond.
CONNECTIONS_MAX = 8
# A cluster node also answers requests for the map of the cluster, and holds the subscriptions.
_CONNECTIONS_BESIDE = 8
PORT_DEFAULT = 6379

# Scheme of a cluster's address -> that of a single server.
_CLUSTER_SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}

# Errors that mean that a server, or a part of a cluster, does not answer.
FAILURES = (RedisError, RedisClusterException, OSError, TimeoutError)


class Address(NamedTuple):
    """The Redis address: the URL of a server as the client library reads it, and the further nodes of a cluster."""

    url: str
    is_cluster: bool = False
    others: Sequence[tuple[str, int]] = ()


def read_address(url: str) -> Address:
    """Parse an address.

    Raises:
        ValueError: a node of a cluster has no host, or an invalid port.
    """
    parts = urlsplit(url)
    scheme = _CLUSTER_SCHEMES.get(parts.scheme)
    if scheme is None:
        return Address(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    first, *others = [_host_and_port(node) for node in hosts.split(",")]
    netloc = f"{credentials}{at}{_bracketed(first[0])}:{first[1]}"
    # A cluster has only database 0.
    return Address(urlunsplit((scheme, netloc, "/0", parts.query, "")), is_cluster=True, others=others)


def _host_and_port(node: str) -> tuple[str, int]:
    found = urlsplit(f"//{node}")
    if not found.hostname:
        raise ValueError(f"a node of a Redis Cluster is HOST:PORT, not {node!r}")
    return found.hostname, found.port or PORT_DEFAULT


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def open_client(url: str, setting: str, connections_max: int) -> tuple[Address, Any]:
    """Return the parsed address and a client, without connecting.

    Raises:
        ConfigurationError: the address is invalid; `setting` names the setting.
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
        "retry": Retry(NoBackoff(), 0),  # the caller decides on repeats; a hidden one would triple the wait
        "protocol": 2,
    }
    if address.is_cluster:
        return RedisCluster.from_url(
            address.url,
            startup_nodes=[ClusterNode(host, port) for host, port in address.others],
            max_connections=connections_max + _CONNECTIONS_BESIDE,
            **options,
        )
    # A call that finds all connections in use waits for one: that does not mean that Redis is unavailable.
    pool = BlockingConnectionPool.from_url(
        address.url, max_connections=connections_max, timeout=TIMEOUT_SECONDS, **options
    )
    return Redis.from_pool(pool)


class Script:
    """A Lua script, awaited under `RedisLink.run`, or added to a pipeline. All its keys share a hash tag."""

    def __init__(self, client: Any, body: str) -> None:
        self._body = body
        self._script: Any = None if client is None else client.register_script(body)

    def command(
        self, keys: Sequence[str], args: Sequence[str | int], *, is_known: bool
    ) -> tuple[str | int | bytes, ...]:
        """Return the command that runs it: by its hash if the server should know it, or with its text."""
        how = ("EVALSHA", self._script.sha) if is_known else ("EVAL", self._body)
        return (*how, len(keys), *keys, *args)

    async def __call__(self, *, keys: Sequence[str], args: Sequence[Any], client: Any = None) -> Any:
        """Run it; with a pipeline as `client`, in its turn there."""
        if client is not None:
            # A pipeline over several servers cannot first check whether each knows the script. One over a single server
            # can, but if that check gets no answer the library never releases the pipeline's connection.
            return client.execute_command("EVAL", self._body, len(keys), *keys, *args)
        return await self._script(keys=keys, args=args)


async def replies_of(client: Any, commands: Sequence[tuple[str | int | bytes, ...]], *, is_cluster: bool) -> list[Any]:
    """Return Redis's answers to commands, in one round trip; a refused one is answered with its error.

    For one server this does what the client's pipeline does, without its overhead: a decision alone takes half as long.
    The connection closes itself if an answer is not read to its end.
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


class ServerDescription(NamedTuple):
    """What a server reports about itself: `Redis` or `Valkey`, its version, and the path of its program on its machine."""

    kind: str
    version: str
    executable: str


async def ask_once(url: str, seconds: float, setting: str = "REDIS_URL") -> ServerDescription:
    """Return what the Redis or Valkey at an address reports about itself, over a connection of its own.

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
        name = "Valkey" if "valkey_version" in found else "Redis"
        return ServerDescription(name, str(found[f"{name.lower()}_version"]), str(found.get("executable", "")))
    except (*FAILURES, ValueError) as error:
        kind = AccessRefusedError if _is_refusal(error) else UnavailableError
        raise kind(failure_reason(error, setting)) from error
    finally:
        if client is not None:
            await client.aclose()


def address_problem(address: Address, info: dict[str, Any], setting: str) -> str | None:
    """Return what is wrong with the scheme of an address, by what its server reports; None: nothing."""
    is_node = bool(int(info.get("cluster_enabled", 0)))
    if is_node == address.is_cluster:
        return None
    if is_node:
        return f"{setting} names a node of a Redis Cluster: let it begin with redis+cluster:// (rediss+cluster:// with TLS)"
    return f"{setting} names a cluster, but the server is not one: use redis:// (rediss:// with TLS)"


def failure_reason(error: BaseException, setting: str) -> str:
    """Return why a call failed, in one line; names `setting` if its address is at fault."""
    untrusted = tls_refusal(error)
    if untrusted is not None:
        return f"the server of {setting} is not trusted (ssl_ca_certs): {untrusted}"
    if isinstance(error, AuthenticationError):
        return f"{setting} is refused: {error}"
    if isinstance(error, RedisClusterException) and isinstance(error.__cause__, Exception):
        return failure_reason(error.__cause__, setting)  # of the last node that answered with the map
    return str(error) or type(error).__name__


def is_failure(error: BaseException) -> bool:
    """Return whether an error means that Redis, or a part of it, does not answer; otherwise it answered with an error."""
    return isinstance(error, ClusterError) or not isinstance(error, ResponseError)  # the first: a part has no primary


def is_exhausted(error: BaseException) -> bool:
    """Return whether a caller waited in vain for a connection; the client has no class for this."""
    return isinstance(error, RedisConnectionError) and isinstance(error.__cause__, TimeoutError)


def _is_refusal(error: BaseException) -> bool:
    return isinstance(error, AuthenticationError) or tls_refusal(error) is not None
