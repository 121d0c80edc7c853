"""What earlier imports of the same origin published, in a file of the data folder: its sources, and its read pages.

Invariant: a source is remembered before its first chunk is published, and forgotten after its end event as a deleted
one is acknowledged; a page counts as known only once everything that it named was acknowledged. So whenever an import
is interrupted, the next one repeats what may be missing, and never less. Two imports of one origin do not run
concurrently.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson

from highwater.schemas.errors import HighwaterError

# The version of the file. Raise it when chunks are cut differently, so that pages are read again.
_VERSION = 2


class ImportRunsError(HighwaterError):
    """Another process is importing the same source. Wait until it ends."""


class MemoryUnreadableError(HighwaterError):
    """The record of earlier imports cannot be read. Remove the named file; the next import reads everything again."""


@dataclass(slots=True)
class Page:
    """A page of a listing at the time when everything that it named was acknowledged.

    Attributes:
        etag: for checking whether it is unchanged.
        following: the URL of the next page.
        entries: the number of its entries.
        sources: the sources that it named.
        is_full: whether the ends of those were full.
    """

    etag: str
    following: str | None
    entries: int
    sources: list[str]
    is_full: bool


@dataclass(slots=True)
class Remembered:
    """What is known of one origin in one slot."""

    path: Path | None
    about: list[str]
    sources: set[str] = field(default_factory=set)
    pages: dict[str, Page] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, about: Sequence[str]) -> Iterator[Self]:
        """Yield what is known of an origin, locked against other imports of it.

        Args:
            folder: the folder of such files; created if missing.
            about: identifies the origin and the target of its chunks.

        Raises:
            ImportRunsError: another process imports it.
            MemoryUnreadableError: the file is damaged.
        """
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(orjson.dumps([os.fsencode(part).hex() for part in about])).hexdigest()[:20]
        with (folder / f"{name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ImportRunsError(f"{about[1]} is being imported by another process") from error
            yield cls._loaded(folder / f"{name}.json", [ascii(part)[1:-1] for part in about])

    @classmethod
    def _loaded(cls, path: Path, about: list[str]) -> Self:
        try:
            said: dict[str, Any] = orjson.loads(path.read_bytes())
            if said["version"] != _VERSION:
                return cls(path, about, set(said["sources"]))
            pages = {url: Page(**page) for url, page in said["pages"].items()}
            return cls(path, about, set(said["sources"]), pages)
        except FileNotFoundError:
            return cls(path, about)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise MemoryUnreadableError(f"{path} cannot be read; remove it to import everything again") from error

    def save(self) -> None:
        """Write it atomically; without a file it is forgotten with the process."""
        if self.path is None:
            return
        said = {
            "version": _VERSION,
            "about": self.about,
            "sources": sorted(self.sources),
            "pages": {url: asdict(page) for url, page in self.pages.items()},
        }
        beside = self.path.with_suffix(".new")
        with beside.open("wb") as file:
            file.write(orjson.dumps(said))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
