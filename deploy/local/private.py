"""Folders and files that only their owner may open.

Invariant: everything created here is 0700 or 0600 from its first moment, independent of the umask and of what existed
before.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

FOLDER_MODE = 0o700
FILE_MODE = 0o600
UMASK = 0o077  # permissions of a process of the stack for its group and others: none
OTHERS = 0o077  # the permission bits of group and others


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents; an existing one is unchanged."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def open_file(path: Path, flags: int) -> BinaryIO:
    """Open a file for writing; `flags` are those of `os.open` besides O_WRONLY and O_CREAT."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, FILE_MODE)
    try:
        os.fchmod(descriptor, FILE_MODE)
        return os.fdopen(descriptor, "ab" if flags & os.O_APPEND else "wb")
    except BaseException:
        os.close(descriptor)
        raise


def write_file(path: Path, text: str) -> None:
    """Write a file; its owner does not change."""
    with open_file(path, os.O_TRUNC) as stream:
        stream.write(text.encode())


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically and durably, so that no reader and no crash finds part of it."""
    scratch = path.with_name(f"{path.name}.new")
    with open_file(scratch, os.O_TRUNC) as stream:
        stream.write(text.encode())
        stream.flush()
        os.fsync(stream.fileno())
    scratch.replace(path)


def is_open_to_others(path: Path) -> bool:
    """Return whether group or others have any permission on it."""
    return bool(stat.S_IMODE(path.stat().st_mode) & OTHERS)


def tighten_tree(folder: Path) -> None:
    """Remove every permission of group and others on a folder and everything in it; links are not followed."""
    for root, _, names in os.walk(folder):
        for path in (Path(root), *(Path(root, name) for name in names)):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and stat.S_IMODE(mode) & OTHERS:
                path.chmod(stat.S_IMODE(mode) & ~OTHERS)
