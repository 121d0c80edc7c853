"""The embedded Redis: one that keeps its data, and one for caches (R2.2).

Own <data_dir>/redis and <data_dir>/redis_cache. Invariants: the first keeps everything (append-only file, a snapshot
every 15 minutes, no eviction) and loses at most the last second when it is killed; the second holds data that can be
rebuilt from PostgreSQL, writes no file, and evicts the least recently used when its memory is full. Both require a
password, and a client cannot make them write another file, load code or follow another server.
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
# R2.3: `save` of redis.conf, a snapshot after this many seconds with at least one change. Redis 6.2 silently ignores it
# as a single word.
SNAPSHOT_RULE = ("900", "1")
# Pages of a dozen leagues and the feeds of ten thousand readers take a quarter of it.
CACHE_MEMORY = "256mb"
# Timer frequency per second, by default ten: an idle server wakes for nothing else. An expired key is not returned in
# any case, and a timed-out wait ends at most half a second later.
HZ = "2"
# From here on a system server, which gets its security updates, is preferred to the installed 7.0.
VERSION_PREFERRED_MIN = 7

# The hash of a password of 256 random bits is enough to store here. No client, not even ours, may use the server
# against its machine; CONFIG GET and RESETSTAT stay, for inspection tools.
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
        """Create the folder, and the list of users."""
        make_folder(self.folder)
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
        return Command((str(server_program()), *arguments), env=server_environment(), cwd=self.folder)

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
