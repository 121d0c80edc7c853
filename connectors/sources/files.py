"""The documents of a folder: a source is a file, known by its relative path.

Invariant: nothing outside the folder is read: links are not followed, and only regular files are opened. Names that
begin with a dot are hidden and skipped.
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO
from urllib.parse import quote

from highwater.connectors.sources.chunked import DOCUMENT_BYTES_MAX, Fault, Item, Reading, SourceDocument, time_or_none
from highwater.schemas.errors import InvalidEventError
from highwater.streams.chunks.identity import check_key_part

PLAIN, MARKDOWN, HTML = "text/plain", "text/markdown", "text/html"
_SLIDES = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
_TABLES = ("text/csv", "text/tab-separated-values")
# Media types by file suffix; other files are imported only on request.
MEDIA_TYPES = {
    **dict.fromkeys((".md", ".markdown"), MARKDOWN),
    **dict.fromkeys((".html", ".htm", ".xhtml"), HTML),
    **dict.fromkeys((".txt", ".text", ".rst", ".adoc"), PLAIN),
    ".csv": _TABLES[0],
    ".tsv": _TABLES[1],
    ".pdf": "application/pdf",
    ".pptx": _SLIDES,
}


def media_type_of(path: str, patterns: Sequence[str]) -> str | None:
    """Return the media type of a file, None if it is not imported.

    Args:
        path: its path in the folder, with `/`.
        patterns: which files to import; a `*` matches any part of the path. Without any, those of the suffixes above.
    """
    known = MEDIA_TYPES.get(os.path.splitext(path)[1].lower())  # noqa: PTH122 (a path of a commit is in no file system)
    if patterns:
        return (known or PLAIN) if any(fnmatchcase(path, pattern) for pattern in patterns) else None
    return known


def title_of(path: str, media_type: str) -> str | None:
    """Return the title of a document that has no headings: only the name of a table's file says what its rows are."""
    return os.path.splitext(path.rpartition("/")[2])[0] if media_type in _TABLES else None  # noqa: PTH122 (as above)


def name_fault(path: str) -> Fault | None:
    """Return why the file's path cannot be the id of a source."""
    try:
        check_key_part("the path", path)
    except InvalidEventError as error:
        return Fault(path, str(error), path)
    return None


def url_of(base: str | None, path: str) -> str | None:
    """Return the URL of the file for a reader."""
    return None if base is None else f"{base.rstrip('/')}/{quote(path)}"


class Folder:
    """The documents of a folder."""

    is_paged = False

    def __init__(self, folder: Path, *, patterns: Sequence[str] = (), url: str | None = None) -> None:
        self._folder = folder
        self._patterns = tuple(patterns)
        self._url = url
        self.identity = ("files", str(folder.resolve()), *sorted(patterns))
        self.reading = Reading()

    async def documents(self) -> AsyncIterator[Item]:
        """Yield its documents in the order of their paths, and faults."""
        for item in self._items():
            yield item

    async def gone(self, source_ids: Sequence[str]) -> list[str]:
        """Return all of them: everything that exists was listed."""
        return list(source_ids)

    def _items(self) -> Iterator[Item]:
        faults: list[Fault] = []
        paths = sorted(self._paths(self._folder, "", faults))
        yield from faults
        wanted = []
        for path in paths:
            media_type = media_type_of(path, self._patterns)
            if media_type is None:
                self.reading.pass_over(path)
            elif (fault := name_fault(path)) is not None:
                yield fault
            else:
                wanted.append((path, media_type))
                self.reading.listed.add(path)
                self._note_time(path)
        for path, media_type in wanted:
            yield self._read(path, media_type)

    def _paths(self, folder: Path, above: str, faults: list[Fault]) -> Iterator[str]:
        """Yield paths of the files in a folder and below it."""
        try:
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:  # its contents may exist or not
            self.reading.is_listed = self.reading.is_whole = False
            faults.append(Fault(above or str(folder), f"the folder cannot be read: {error.strerror}"))
            return
        for entry in found:
            path = above + entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._paths(folder / entry.name, f"{path}/", faults)
            elif entry.is_file(follow_symlinks=False):
                yield path
            else:
                self.reading.passed_over += 1

    def _note_time(self, path: str) -> None:
        with suppress(OSError):  # deleted meanwhile, which is reported when it is read
            published_at = time_or_none(os.lstat(self._folder / path).st_mtime_ns // 1_000_000)
            if published_at is not None:
                self.reading.times[path] = published_at

    def _read(self, path: str, media_type: str) -> Item:
        try:
            with self._opened(path) as file:
                status = os.fstat(file.fileno())
                raw = file.read(DOCUMENT_BYTES_MAX + 1)
        except OSError as error:
            return Fault(path, f"it cannot be read: {error.strerror}", path)
        published_at = time_or_none(status.st_mtime_ns // 1_000_000)
        title, url = title_of(path, media_type), url_of(self._url, path)
        return SourceDocument(path, raw, media_type, title, url, published_at)

    def _opened(self, path: str) -> IO[bytes]:
        """Open the file, if it still is one: it may have been replaced after it was listed.

        Raises:
            OSError: it does not exist, or is no longer a file.
        """
        opened = os.open(self._folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise OSError(0, "it is no longer a file")
        return os.fdopen(opened, "rb")
