"""The data folder and who holds it.

Law: at most one process runs a stack on a data folder, told by a kernel lock that ends with its holder, so neither a
crash nor a reused process number can leave it taken.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from highwater.deploy.local.errors import AlreadyRunningError, LocalStackError

# Separators in the broker's list of log folders, in the registry's database URL, and escapes in property files.
CHARACTERS_REFUSED = ",;\\\n"


def lock_path(data_dir: Path) -> Path:
    """Return the path of the lock file."""
    return data_dir / "run" / "lock"


def checked(data_dir: Path) -> Path:
    """Return the absolute path of a data folder that every part can be given.

    Raises:
        LocalStackError: The path has a character that some part would misread.
    """
    path = data_dir.expanduser().absolute()
    refused = sorted(set(str(path)) & set(CHARACTERS_REFUSED))
    if refused:
        raise LocalStackError(f"the data folder's path may not contain {refused[0]!r}: {path}")
    return path


class DataDirLock:
    """The lock of one data folder; taken twice by its holder it stays taken."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._descriptor: int | None = None

    @property
    def is_taken(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def take(self) -> None:
        """Take the lock, making the folder if need be.

        Raises:
            AlreadyRunningError: Another process holds it.
        """
        if self._descriptor is not None:
            return
        path = lock_path(self._data_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise AlreadyRunningError(f"a local stack is already running on {self._data_dir}") from error
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back."""
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
        # Shared, so that two that only ask do not see each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
