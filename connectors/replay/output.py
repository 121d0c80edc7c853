"""Owns the file that a replay writes.

Invariant: under its final name there is either the whole file or what was there before; a part of one never is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

# Names have at most 255 bytes; what is added to one needs room.
_NAME_CHARACTERS_KEPT = 48


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, renamed to `path` when the block ends well and removed when it does not.

    A device or a named pipe is written as it comes, for nothing can be renamed to it.

    Raises:
        OSError: there is no such folder, no permission, or no room.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    partial = target.with_name(f".{target.name[:_NAME_CHARACTERS_KEPT]}.{os.getpid()}.partial")
    file = partial.open("wb")
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        file.close()
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)  # first, so that even a second Ctrl-C leaves no more than an open file
        with suppress(OSError):  # what is still buffered has no room, and is not missed
            file.close()
        raise
