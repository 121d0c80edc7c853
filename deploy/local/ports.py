"""Which port each listener of a data folder has.

Owns <data_dir>/run/ports.json. Invariant: a listener gets its previous port if that is free, else its default, else the
next free one; a configured port is used or refused, never replaced. A chosen port stays reserved, also while its
listener is starting or stopped for a while: stacks of other data folders on this machine see it reserved by a lock that
ends with this process.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import socket
import stat
import tempfile
import threading
from pathlib import Path

from highwater.deploy.local.errors import LocalStackError, PortTakenError
from highwater.deploy.local.private import FOLDER_MODE, make_folder, replace_file

# Searched upwards from the default. Never in the ephemeral range: a client that keeps connecting to a stopped server
# there may get the server's own port, connect to itself and keep it.
PORTS_TRIED_MAX = 500


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a listener could be opened on host:port now.

    Raises:
        LocalStackError: The host is not an address of this machine, so no port of it is.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connections are in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
                raise LocalStackError(f"{host} is not an address of this machine: correct HIGHWATER_HOST") from error
            return False
        return True


class PortBook:
    """The ports of one data folder, remembered over restarts."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "run" / "ports.json"
        self._lock = threading.Lock()  # services start concurrently
        self._taken: dict[str, int] = {}
        self._reserved: dict[int, int] = {}  # port -> the open file whose lock reserves it

    def take(self, name: str, default: int, *, explicit: int | None = None, host: str = "127.0.0.1") -> int:
        """Return the port for the listener with this name, and remember it.

        Raises:
            PortTakenError: The explicit port is in use.
            LocalStackError: No port near the default is free.
        """
        with self._lock:
            if explicit is not None:
                if not (is_free(explicit, host) and self._reserve(explicit)):
                    raise PortTakenError(f"port {explicit} for {name} is taken: free it or set another")
                self._remember(name, explicit)
                return explicit
            others = {port for other, port in self._taken.items() if other != name}
            remembered = self._read().get(name, default)
            for port in itertools.chain((remembered,), range(default, default + PORTS_TRIED_MAX)):
                if port not in others and is_free(port, host) and self._reserve(port):
                    self._remember(name, port)
                    return port
        raise LocalStackError(f"no free port for {name} from {default} to {default + PORTS_TRIED_MAX - 1}")

    def taken(self, name: str) -> int:
        """Return the chosen port of the listener with this name.

        Raises:
            KeyError: it has none yet.
        """
        with self._lock:
            return self._taken[name]

    def release(self) -> None:
        """Release the ports."""
        with self._lock:
            for opened in self._reserved.values():
                os.close(opened)  # releases the lock
            self._reserved.clear()

    def _reserve(self, port: int) -> bool:
        """Reserve a port on this machine until `release` or the end of this process; return False if another stack has it."""
        if port in self._reserved:
            return True
        folder = Path(tempfile.gettempdir()) / f"highwater-ports-{os.getuid()}"
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            # Links in it would let its owner make us create files anywhere.
            raise LocalStackError(
                f"{folder} was created by another user: have it removed, or set TMPDIR to your own folder"
            )
        opened = os.open(folder / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(opened)
            return False
        self._reserved[port] = opened
        return True

    def _read(self) -> dict[str, int]:
        try:
            return {str(name): int(port) for name, port in json.loads(self._path.read_text(encoding="utf-8")).items()}
        except (FileNotFoundError, ValueError):  # a damaged file only loses the remembered ports
            return {}

    def _remember(self, name: str, port: int) -> None:
        self._taken[name] = port
        make_folder(self._path.parent)
        replace_file(self._path, json.dumps({**self._read(), name: port}))
