"""The embedded Redis: one that keeps what it is given, and one for what may go (R2.2).

Own <data_dir>/redis and <data_dir>/redis_cache. Invariants: the first keeps everything (append-only file, a snapshot every
15 minutes, no eviction) and loses at most the last second when it is killed; the second holds what is made again from PostgreSQL,
writes no file, and lets go of what nobody asked for when its memory is full. Neither answers anybody without its password, and
a client cannot make it write another file, load code or follow another server.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.installed import install_root
from highwater.deploy.local.part import Part, server_environment
from highwater.deploy.local.private import make_folder, write_file
from highwater.deploy.local.process import Command
from highwater.deploy.local.relay import Relayed
from highwater.deploy.local.stack_secrets import fingerprint

PORT_DEFAULT = 6379
USER = "highwater"
SOCKET = "redis.sock"
# R2.3: `save` of redis.conf, a snapshot after so many seconds with at least one change. As one word 6.2 passes over it silently.
SNAPSHOT_RULE = ("900", "1")
# Pages of a dozen leagues and the feeds of ten thousand readers are a quarter of it.
CACHE_MEMORY = "256mb"
# How often a second Redis looks after what has a time: a server at rest wakes for nothing else, by default ten times. A key whose
# time is over is not answered in any case, and a wait that is over ends half a second later at most.
HZ = "2"
# From here on a server of the system, which gets its security updates, is taken before the installed 7.0.
VERSION_PREFERRED_MIN = 7

# The hash of a password of 256 random bits is enough to hold here. No client, not even ours, may turn the server into a
# tool against its machine; CONFIG GET and RESETSTAT stay, for tools that people look through.
_RIGHTS = "+@all -config +config|get +config|resetstat -module -debug -replicaof -slaveof -acl -shutdown"
ACCESS = f"""\
user default off
user {USER} on #{{password_sha256}} ~* &* {_RIGHTS}
"""


def server_program() -> Path:
    """Return the redis-server to run: the system's if it is new enough, else the installed one."""
    found = shutil.which("redis-server")
    if found:
        answer = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
        version = re.search(r"v=(\d+)\.", answer.stdout)
        if version and int(version[1]) >= VERSION_PREFERRED_MIN:
            return Path(found)
    installed = install_root() / "redis" / "redis-server"
    if not installed.is_file():
        raise LocalStackError("the embedded Redis is not installed: run `make install`, or set REDIS_URL")
    return installed


class Redis(Part):
    """Redis; the address is its URL."""

    name: ClassVar[str] = "redis"
    port_default: ClassVar[int] = PORT_DEFAULT
    keeping: ClassVar[Mapping[str, str]] = {
        "appendonly": "yes",
        "appendfsync": "everysec",
        # The append-only file is what counts: a snapshot that fails, for want of memory or room, is no reason to refuse writes.
        "stop-writes-on-bgsave-error": "no",
        "maxmemory-policy": "noeviction",
    }
    snapshots: ClassVar[tuple[str, ...]] = SNAPSHOT_RULE
    _port = 0

    @property
    def address(self) -> str:
        """The URL, database 0; with TLS, the authority too, as redis-py reads it."""
        if self.certificates is not None:
            trusted = quote(str(self.certificates.authority))
            return f"rediss://{USER}:{self._password()}@127.0.0.1:{self._port}/0?ssl_ca_certs={trusted}"
        return f"redis://{USER}:{self._password()}@127.0.0.1:{self._port}/0"

    @property
    def relayed(self) -> Relayed | None:
        """A server of the system may be built without TLS; the installed one is treated alike."""
        if self.certificates is None:
            return None
        return Relayed(self.name, self._port, self.folder / SOCKET, is_postgres=False)

    def take_ports(self) -> None:
        """Choose the port."""
        self._port = self.ports.take(self.name, self.port_default)

    def prepare(self) -> None:
        """Make the folder, and say who may log in."""
        make_folder(self.folder)
        write_file(self._access_path(), ACCESS.format(password_sha256=fingerprint(self._password())))

    def command(self) -> Command:
        """Return how to run Redis."""
        single = {
            **self._place(),
            "dir": str(self.folder),
            "aclfile": str(self._access_path()),
            **self.keeping,
            "hz": HZ,
            "daemonize": "no",
        }
        options = {**{name: (value,) for name, value in single.items()}, "save": self.snapshots}
        arguments = tuple(word for name, words in options.items() for word in (f"--{name}", *words))
        return Command((str(server_program()), *arguments), env=server_environment(), cwd=self.folder)

    def _place(self) -> dict[str, str]:
        if self.certificates is None:
            return {"bind": "127.0.0.1", "port": str(self._port)}
        # Relative to its folder: the path of a socket has 107 bytes at most.
        return {"port": "0", "unixsocket": SOCKET, "unixsocketperm": "700"}

    def _password(self) -> str:
        return self.secrets.get(self.name)

    def _access_path(self) -> Path:
        return self.folder / "users.acl"


class RedisCache(Redis):
    """The Redis of what may go: documents with their versions, and the semantic cache."""

    name: ClassVar[str] = "redis_cache"
    port_default: ClassVar[int] = PORT_DEFAULT + 1
    snapshots: ClassVar[tuple[str, ...]] = ("",)
    keeping: ClassVar[Mapping[str, str]] = {
        "appendonly": "no",
        "maxmemory": CACHE_MEMORY,
        "maxmemory-policy": "allkeys-lru",
    }
