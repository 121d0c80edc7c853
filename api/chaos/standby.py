"""The fault `stale-standby`: a standby of PostgreSQL that is behind takes over when the server is killed.

Invariant: the standby is real: `pg_basebackup`, streaming, `pg_ctl promote`. It takes over in the place of the server,
with its port, so that clients meet it under the same address.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from highwater.api.chaos.ground import Ground
from highwater.connectors.chaos import truths
from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.postgres import CONNECTIONS_MAX, DATABASE, HOST_ACCESS, Postgres
from highwater.deploy.local.process import ManagedProcess
from highwater.streams.progress import HOUR_SECONDS, WorkLimit

_SERVER = "database"
# Beside the proxies' ports; searched upwards.
_PORT_FIRST = 19_432
# Without progress; a copy has some hundred megabytes.
_TOOL_LIMIT = WorkLimit(quiet_seconds_max=60.0, total_seconds_max=0.5 * HOUR_SECONDS)
_FOLLOWS_SECONDS_MAX = 60.0
_PROMOTE_SECONDS_MAX = 60.0


class Standby:
    """One standby of a stack's PostgreSQL, which ends by taking over."""

    def __init__(self, ground: Ground) -> None:
        part = ground.servers.part(_SERVER)
        assert isinstance(part, Postgres)
        self._ground = ground
        self._servers = ground.servers
        self._part = part
        self._folder = part.folder / "standby"
        self._process = ManagedProcess("standby", part.data_dir / "logs" / "standby.log")

    def follow(self) -> None:
        """Copy the server, start the copy as a standby, and wait until it streams."""
        self._allow_replication()
        server = urlsplit(self._part.address)
        address = f"host={server.hostname} port={server.port} user={DATABASE} password={server.password}"
        copy = self._part.tool(
            "pg_basebackup", "-d", address, "-D", str(self._folder), "-R", "-X", "stream", "-c", "fast"
        )
        self._process.run_to_end(copy, _TOOL_LIMIT)
        port = self._servers.ports.take("standby", _PORT_FIRST)
        options = ("-c", f"port={port}", "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
        more = ("-c", f"max_connections={CONNECTIONS_MAX}", "-c", "timezone=UTC", "-c", "log_timezone=UTC")
        self._process.start(self._part.tool("postgres", "-D", str(self._folder), *options, *more))
        self._ground.until(self._streams, "the standby does not stream", _FOLLOWS_SECONDS_MAX)

    def hold(self) -> None:
        """Stop the standby, so that it misses what follows."""
        self._process.stop(_TOOL_LIMIT)

    def take_over(self) -> None:
        """Kill the server, and start the standby in its place."""
        self._process.kill()
        self._servers.kill_part(_SERVER)
        cluster = self._part.cluster()
        lost = cluster.with_name(f"lost-{sum(1 for _ in cluster.parent.glob('lost-*'))}")
        cluster.rename(lost)
        self._folder.rename(cluster)
        self._servers.start_part(_SERVER)
        self._process.run_to_end(
            self._part.tool("pg_ctl", "promote", "-D", str(cluster), "-t", str(int(_PROMOTE_SECONDS_MAX))),
            _TOOL_LIMIT,
        )

    def _allow_replication(self) -> None:
        """Restart the server with a role that may replicate; only its superuser, who cannot log in, can allow that."""
        self._servers.stop_part(_SERVER)
        self._part.execute(self._part.cluster(), f"ALTER ROLE {DATABASE} REPLICATION;\n")
        self._servers.start_part(_SERVER)
        access = self._part.cluster() / "pg_hba.conf"
        access.write_text(HOST_ACCESS + HOST_ACCESS.replace("host all", "host replication"), encoding="utf-8")
        self._process.run_to_end(self._part.tool("pg_ctl", "reload", "-D", str(self._part.cluster())), _TOOL_LIMIT)

    def _streams(self) -> bool:
        if not self._process.is_alive():
            raise LocalStackError(f"the standby has ended: {self._process.last_words()}")
        return self._ground.asked(truths.has_standby)
