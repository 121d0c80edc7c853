"""The output file of a replay.

Invariant: under its final name there is either the complete file or the previous one; never a part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

# Names have at most 255 bytes; the suffix needs room.
_NAME_CHARACTERS_KEPT = 48


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file, renamed to `path` when the block succeeds and removed otherwise.

    A device or a named pipe is written directly, since nothing can be renamed to it.

    Raises:
        OSError: there is no such folder, no permission, or no space.
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
        partial.unlink(missing_ok=True)  # first, so that even a second Ctrl-C leaves only an open file
        with suppress(OSError):  # there is no space for buffered data, and it is not needed
            file.close()
        raise
