"""The data folder and its lock.

Invariants: only its owner may enter it. At most one process runs a stack on a data folder, ensured by a kernel lock
that ends with its holder, so neither a crash nor a reused process number leaves it locked.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from highwater.deploy.local.errors import AlreadyRunningError, LocalStackError
from highwater.deploy.local.private import FILE_MODE, FOLDER_MODE, OTHERS, make_folder, tighten_tree

# Separators in the broker's list of log folders, in the registry's database URL, and escapes in property files.
CHARACTERS_REFUSED = ",;\\\n"
# The folders in a data folder. PostgreSQL checks the permissions of its own, which may be another user's.
FOLDERS = ("run", "logs", "kafka", "registry", "redis", "redis_cache", "tls", "faust", "imports")
POSTGRES_FOLDER = "postgres"


def lock_path(data_dir: Path) -> Path:
    """Return the path of the lock file."""
    return data_dir / "run" / "lock"


def checked(data_dir: Path) -> Path:
    """Return the absolute path of a data folder if every service can use it.

    Raises:
        LocalStackError: The path has a character that some service would misread.
    """
    path = data_dir.expanduser().absolute()
    try:
        os.fsencode(path).decode()
        str(path).encode()
    except UnicodeError as error:
        raise LocalStackError(
            f"the data folder's path is not UTF-8, or Python does not read it as UTF-8 in this environment: {str(path)!a};"
            " set LC_ALL=C.UTF-8 and leave PYTHONUTF8 unset, or choose another path"
        ) from error
    refused = sorted(set(str(path)) & set(CHARACTERS_REFUSED))
    if refused:
        raise LocalStackError(f"the data folder's path may not contain {refused[0]!r}: {path}")
    return path


def secure(data_dir: Path) -> None:
    """Create the data folder if necessary, accessible only to its owner: an open one is closed, with everything in it.

    Raises:
        LocalStackError: It belongs to another user, or contains other folders, which may be meant for others.
    """
    make_folder(data_dir)
    status = data_dir.stat()
    if os.geteuid() not in {0, status.st_uid}:
        raise LocalStackError(f"the data folder belongs to another user: {data_dir}; set HIGHWATER_DATA_DIR")
    if not stat.S_IMODE(status.st_mode) & OTHERS:
        return
    ours = {*FOLDERS, POSTGRES_FOLDER}
    strange = sorted(path.name for path in data_dir.iterdir() if path.is_dir() and path.name not in ours)
    if strange:  # a home, /tmp, /var/lib: closing it would lock others out of their files
        raise LocalStackError(
            f"other users may enter the data folder {data_dir}, and it holds {strange[0]!r}, which is not Highwater's:"
            " set HIGHWATER_DATA_DIR to a folder of its own, or close this one (chmod 700)"
        )
    data_dir.chmod(FOLDER_MODE)  # first: from here on nobody passes
    for name in FOLDERS:
        tighten_tree(data_dir / name)


class DataDirLock:
    """The lock of one data folder; its holder may take it repeatedly."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._descriptor: int | None = None

    @property
    def is_taken(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    @property
    def inode(self) -> int:
        """Return the number of the lock file, which a copy of the folder does not have."""
        return lock_path(self._data_dir).stat().st_ino

    def take(self) -> None:
        """Take the lock, creating the folder if necessary.

        Raises:
            AlreadyRunningError: Another process holds it.
            LocalStackError: The folder cannot be closed to others.
        """
        if self._descriptor is not None:
            return
        secure(self._data_dir)
        path = lock_path(self._data_dir)
        make_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise AlreadyRunningError(f"a local stack is already running on {self._data_dir}") from error
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def is_orphaned(self) -> bool:
        """Return whether the folder was removed, or replaced, under its holder."""
        if self._descriptor is None:
            return False
        try:
            there = lock_path(self._data_dir).stat()
        except FileNotFoundError:
            return True
        held = os.fstat(self._descriptor)
        return (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino)


def is_held(data_dir: Path) -> bool:
    """Return whether some process runs a stack on this folder now."""
    path = lock_path(data_dir)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two queries do not see each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
