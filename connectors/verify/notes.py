"""Notes: the contents of events, by kind and key, on disk during one verification.

Invariant: memory is that of two buffers, however long the log is; the folder is temporary and deleted with the
verification.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import orjson
from rocksdict import Options, Rdict, WriteOptions

Key = tuple[Any, ...]
# At most two of these are held in memory: 300,000 notes of an effect took 50 MB of the process in total.
_BUFFER_BYTES = 16 << 20


class Noting(Protocol):
    """A store of notes; a dict suffices for a few."""

    def get(self, key: Key) -> Any:
        """Return what was noted for a key; None if nothing was."""

    def __setitem__(self, key: Key, value: Any) -> None:
        """Note something."""


class Notes:
    """Notes stored in a folder. A key is a tuple of strings and numbers. Values are copied: store a changed value again."""

    def __init__(self, folder: str) -> None:
        options = Options()
        options.create_if_missing(True)
        options.set_write_buffer_size(_BUFFER_BYTES)
        options.set_max_write_buffer_number(2)
        self._rows = Rdict(folder, options)
        writing = WriteOptions()
        writing.disable_wal = True  # what a crash loses is never needed again
        self._rows.set_write_options(writing)

    def get(self, key: Key) -> Any:
        """Return what was noted for a key; None if nothing was."""
        return self._rows.get(orjson.dumps(key))

    def __setitem__(self, key: Key, value: Any) -> None:
        """Note something."""
        self._rows[orjson.dumps(key)] = value

    def close(self) -> None:
        """Close the files."""
        self._rows.close()


@contextmanager
def notes_on_disk() -> Iterator[Notes]:
    """Yield notes in a temporary folder, which is deleted afterwards."""
    folder = tempfile.mkdtemp(prefix="highwater-verify-")
    try:
        notes = Notes(folder)
        try:
            yield notes
        finally:
            notes.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Named:
    """The notes of one kind among others."""

    def __init__(self, notes: Noting, kind: str) -> None:
        self._notes = notes
        self._kind = kind

    def get(self, key: Key) -> Any:
        """Return what was noted for a key; None if nothing was."""
        return self._notes.get((self._kind, *key))

    def __setitem__(self, key: Key, value: Any) -> None:
        """Note something."""
        self._notes[(self._kind, *key)] = value
