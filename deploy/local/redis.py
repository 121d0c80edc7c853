"""The embedded Redis, or Valkey: one that keeps its data, and one for caches (R2.2).

Own <data_dir>/redis and <data_dir>/redis_cache. Invariants: the first keeps everything (append-only file, a snapshot
every 15 minutes, no eviction) and loses at most the last second when it is killed; the second holds data that can be
rebuilt from PostgreSQL, writes no file, and evicts the least recently used when its memory is full. Both require a
password, and a client cannot make them write another file, load code or follow another server. A server never starts on
files that only another one can read: these are deleted, and Redis is filled again from PostgreSQL.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.fetch import REDIS_ROOTS
from highwater.deploy.local.installed import install_root
from highwater.deploy.local.part import Part, server_environment
from highwater.deploy.local.private import make_folder, write_file
from highwater.deploy.local.process import Command
from highwater.deploy.local.relay import Relayed
from highwater.deploy.local.stack_secrets import fingerprint

PORT_DEFAULT = 6379
USER = "highwater"
SOCKET = "redis.sock"
# R2.3: `save` of redis.conf, a snapshot after this many seconds with at least one change. Redis 6.2 silently ignores it
# as a single word.
SNAPSHOT_RULE = ("900", "1")
# Pages of a dozen leagues and the feeds of ten thousand readers take a quarter of it.
CACHE_MEMORY = "256mb"
# Timer frequency per second, by default ten: an idle server wakes for nothing else. An expired key is not returned in
# any case, and a timed-out wait ends at most half a second later.
HZ = "2"
# A server of the system gets its security updates, so it is preferred to the installed one. Older ones lack commands.
SYSTEM_PROGRAMS = ("redis-server", "valkey-server")
VERSION_PREFERRED_MIN = (7,)
# The audit of the dependencies (`deploy/dependencies.py`).
AUDIT = Path(__file__).parents[1] / "dependencies.json"
# Where each keeps what it writes: the append-only file, the snapshot, and who wrote them.
_FILES, _SNAPSHOT, _WRITER = "appendonlydir", "dump.rdb", "server"

# The hash of a password of 256 random bits is enough to store here. No client, not even ours, may use the server
# against its machine; CONFIG GET and RESETSTAT stay, for inspection tools.
_RIGHTS = "+@all -config +config|get +config|resetstat -module -debug -replicaof -slaveof -acl -shutdown"
ACCESS = f"""\
user default off
user {USER} on #{{password_sha256}} ~* &* {_RIGHTS}
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A program that serves the protocol of Redis, as `--version` describes it."""

    program: Path
    kind: str  # Redis or Valkey
    version: tuple[int, ...]

    def can_read(self, writer: str) -> bool:
        """Return whether it reads the files of a server, given as `str` of it: of the same kind, and not of a newer one."""
        kind, _, version = writer.partition(" ")
        return kind == self.kind and bool(version) and _numbers(version) <= self.version

    def __str__(self) -> str:
        """Return kind and version, as the data folder names the server that wrote it."""
        return f"{self.kind} {'.'.join(map(str, self.version))}"


def installed_program() -> Path:
    """Return where `make install` puts the Redis that is used if the system has none."""
    return install_root() / "redis" / "redis-server"


def chosen_server() -> Server:
    """Return the server to run: the system's Redis or Valkey if it is new enough, else the installed Redis.

    Raises:
        LocalStackError: there is none.
    """
    for name in SYSTEM_PROGRAMS:
        found = shutil.which(name)
        server = _described(Path(found)) if found else None
        if server is not None and server.version >= VERSION_PREFERRED_MIN:
            return server
    server = _described(installed_program()) if installed_program().is_file() else None
    if server is None:
        raise LocalStackError("the embedded Redis is not installed: run `make install`, or set REDIS_URL")
    return server


def known_vulnerabilities() -> tuple[str, list[str]]:
    """Return the date of the audit, and the ids of the advisories on the installed Redis that it names."""
    audit = json.loads(AUDIT.read_text("utf-8"))
    group, artifact, version, _ = REDIS_ROOTS[0].split(":")
    package = f"{group}:{artifact}@{version}"
    return audit["checked"], [one["id"] for one in audit["vulnerabilities"] if one["package"] == package]


def _described(program: Path) -> Server | None:
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    found = re.match(r"(Redis|Valkey) server v=(\d+(?:\.\d+)*)", answer.stdout)
    return Server(program, found[1], _numbers(found[2])) if found else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


class Redis(Part):
    """Redis; the address is its URL."""

    name: ClassVar[str] = "redis"
    is_kept: ClassVar[bool] = False  # filled again from PostgreSQL
    port_default: ClassVar[int] = PORT_DEFAULT
    keeping: ClassVar[Mapping[str, str]] = {
        "appendonly": "yes",
        "appendfsync": "everysec",
        # The append-only file matters: a failed snapshot, for lack of memory or space, must not refuse writes.
        "stop-writes-on-bgsave-error": "no",
        "maxmemory-policy": "noeviction",
    }
    snapshots: ClassVar[tuple[str, ...]] = SNAPSHOT_RULE
    _port = 0
    _server: Server

    @property
    def address(self) -> str:
        """Return the URL, database 0; with TLS, the authority too, as redis-py reads it."""
        if self.certificates is not None:
            trusted = quote(str(self.certificates.authority))
            return f"rediss://{USER}:{self._password()}@127.0.0.1:{self._port}/0?ssl_ca_certs={trusted}"
        return f"redis://{USER}:{self._password()}@127.0.0.1:{self._port}/0"

    @property
    def relayed(self) -> Relayed | None:
        """Return the relay: a system server may be built without TLS; the installed one is treated alike."""
        if self.certificates is None:
            return None
        return Relayed(self.name, self._port, self.folder / SOCKET, is_postgres=False)

    def take_ports(self) -> None:
        """Choose the port."""
        self._port = self.ports.take(self.name, self.port_default)

    def prepare(self) -> None:
        """Choose the server, and create the folder and the list of users."""
        self._server = chosen_server()
        make_folder(self.folder)
        self._keep_readable(self._server)
        write_file(self._access_path(), ACCESS.format(password_sha256=fingerprint(self._password())))

    def command(self) -> Command:
        """Return how to run Redis."""
        single = {
            **self._place(),
            # Relative to the working folder: Redis joins its arguments to the text of a configuration file, where a quotation
            # mark or a space in a path would have a meaning.
            "dir": ".",
            "aclfile": self._access_path().name,
            **self.keeping,
            "hz": HZ,
            "daemonize": "no",
        }
        options = {**{name: (value,) for name, value in single.items()}, "save": self.snapshots}
        arguments = tuple(word for name, words in options.items() for word in (f"--{name}", *words))
        return Command((str(self._server.program), *arguments), env=server_environment(), cwd=self.folder)

    def _keep_readable(self, server: Server) -> None:
        """Delete the files of another server: the format of one is not that of a newer one, or of the other kind."""
        writer = self.folder / _WRITER
        written_by = writer.read_text("utf-8") if writer.is_file() else ""
        if written_by and not server.can_read(written_by):
            shutil.rmtree(self.folder / _FILES, ignore_errors=True)
            (self.folder / _SNAPSHOT).unlink(missing_ok=True)
        if written_by != str(server):
            write_file(writer, str(server))

    def _place(self) -> dict[str, str]:
        if self.certificates is None:
            return {"bind": "127.0.0.1", "port": str(self._port)}
        # Relative to its folder: the path of a socket has at most 107 bytes.
        return {"port": "0", "unixsocket": SOCKET, "unixsocketperm": "700"}

    def _password(self) -> str:
        return self.secrets.get(self.name)

    def _access_path(self) -> Path:
        return self.folder / "users.acl"


class RedisCache(Redis):
    """The Redis for caches: documents with their versions, and the semantic cache."""

    name: ClassVar[str] = "redis_cache"
    port_default: ClassVar[int] = PORT_DEFAULT + 1
    snapshots: ClassVar[tuple[str, ...]] = ("",)
    keeping: ClassVar[Mapping[str, str]] = {
        "appendonly": "no",
        "maxmemory": CACHE_MEMORY,
        "maxmemory-policy": "allkeys-lru",
    }
