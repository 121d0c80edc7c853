"""A git repository: the documents of a commit as sources, or its commits as insights.

Invariant: what is published depends only on the commit, not on the working directory. The repository comes from
outside: its configuration starts no program, nothing is fetched, and names are read from git's NUL-separated formats,
so they may contain any character.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, TypeAlias

from highwater.connectors.sources.chunked import DOCUMENT_BYTES_MAX, Fault, Item, Reading, SourceDocument, time_or_none
from highwater.connectors.sources.files import media_type_of, name_fault, title_of, url_of
from highwater.schemas.errors import HighwaterError
from highwater.schemas.feeds import InsightIngested
from highwater.streams.documents.decoding import UnreadableDocumentError, clean

INSIGHT = "feeds.insight-ingested"
_PART_BYTES = 1 << 18
# Settings by which a repository's own configuration could run programs, or fetch what a clone left out.
_GUARDS = (
    *("-c", "log.showSignature=false", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
    *(
        "-c",
        "protocol.allow=never",
        "-c",
        "log.showRoot=true",
        "-c",
        "log.mailmap=false",
        "-c",
        "i18n.logOutputEncoding=UTF-8",
    ),
    *("-c", "core.quotePath=false", "-c", "log.follow=false", "-c", "diff.orderFile=/dev/null"),
    *("--no-pager", "--no-replace-objects", "--literal-pathspecs"),
)
_ENVIRONMENT = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
_FILE_MODES = frozenset({b"100644", b"100755", b"100664"})
# Addresses of repositories on GitHub, whose pages have known URLs.
_GITHUB = re.compile(r"(?:https://|ssh://git@|git@)github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?", re.ASCII)
_NAME = re.compile(r"[:/]([^:/]+/[^:/]+?)(?:\.git)?/?$")


Read: TypeAlias = Callable[[bytes], bytes]


class GitError(HighwaterError):
    """Git cannot read the repository. Read its message, and check that the folder is a repository."""


class _File(NamedTuple):
    path: str
    object_id: bytes


class Repository:
    """What git reports about the repository that a folder is, or is part of; only contents of the folder."""

    def __init__(self, folder: Path, revision: str = "HEAD") -> None:
        """Find the commit.

        Raises:
            GitError: git, the repository or the commit does not exist.
        """
        self.folder = folder.resolve()
        # Variables that point to another repository (for example of a hook) are removed; the location of git's
        # configuration stays.
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GIT_") or name.startswith("GIT_CONFIG")
        } | _ENVIRONMENT
        told = self._told(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", what=revision
        )
        self.commit = told.splitlines()[-1]
        self.prefix = self._told("rev-parse", "--show-prefix").removesuffix("\n")
        self._origin = self._maybe("config", "--get", "remote.origin.url").strip()

    @property
    def name(self) -> str:
        """Return its name: the last two parts of its clone URL, else the folder's name."""
        found = _NAME.search(self._origin)
        return found[1] if found is not None else self.folder.name.removesuffix(".git")

    @property
    def page(self) -> str | None:
        """Return its page on GitHub, if it was cloned from there."""
        found = _GITHUB.fullmatch(self._origin)
        return None if found is None else f"https://github.com/{found[1]}"

    def files(self) -> Iterator[tuple[str, bytes | None]]:
        """Yield path and object of everything in the commit; the object is None if it is not a file."""
        with self.output("ls-tree", "-r", "-z", self.commit) as out:
            for entry in _entries(out):
                about, _, path = entry.partition(b"\t")
                mode, _, object_id = about.split()
                yield os.fsdecode(path), object_id if mode in _FILE_MODES else None

    def changed_at(self, paths: set[str]) -> dict[str, int]:
        """Return when each path last changed on the main line, in ms since 1970: the time of the merging commit."""
        found: dict[str, int] = {}
        seconds = 0
        command = (
            "log",
            "--first-parent",
            "-m",
            "--root",
            "--raw",
            "-z",
            "--no-renames",
            "--no-ext-diff",
            "--no-textconv",
        )
        with self.output(*command, "--no-abbrev", "--relative", "--format=%ct", self.commit) as out:
            entries = _entries(out)
            for entry in entries:
                said = entry.strip(b"\n")
                if said.startswith(b":"):
                    path = os.fsdecode(next(entries, b""))
                    if path in paths:
                        found.setdefault(path, seconds * 1_000)
                elif said:
                    seconds = int(said)
                if len(found) == len(paths):
                    break
        return found

    @contextmanager
    def objects(self) -> Iterator[Read]:
        """Yield a function that reads objects, one after the other.

        It raises UnreadableDocumentError for a missing or too large one.
        """
        with self._process("cat-file", "--batch", stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            to_git, from_git = process.stdin, process.stdout

            def read(object_id: bytes) -> bytes:
                try:
                    to_git.write(object_id + b"\n")
                    to_git.flush()
                except OSError as error:
                    raise GitError(f"git cat-file stopped in {self.folder}") from error
                said = from_git.readline().split()
                if len(said) != 3:  # `ID missing`
                    raise UnreadableDocumentError("git does not have it: the clone is not complete")
                size = int(said[2])
                if size > DOCUMENT_BYTES_MAX:
                    _skip(from_git, size + 1)
                    raise UnreadableDocumentError(f"it is larger than {DOCUMENT_BYTES_MAX >> 20} MiB")
                raw = from_git.read(size + 1)
                if len(raw) <= size:
                    raise GitError(f"git cat-file stopped in {self.folder}")
                return raw[:-1]

            yield read
            to_git.close()

    def commits(self) -> Iterator[tuple[str, int, str]]:
        """Yield id, time in ms since 1970 and subject of every ancestor of this commit, oldest first."""
        with self.output("log", "--reverse", "-z", "--format=%H%x00%ct%x00%s", self.commit) as out:
            entries = _entries(out)
            for commit in entries:
                seconds, subject = next(entries, b""), next(entries, b"")
                yield commit.decode("ascii"), int(seconds or 0) * 1_000, subject.decode("utf-8", "replace")

    @contextmanager
    def output(self, *arguments: str) -> Iterator[IO[bytes]]:
        """Yield the output of a git command.

        Raises:
            GitError: it failed.
        """
        with self._process(*arguments) as process:
            assert process.stdout is not None
            yield process.stdout

    @contextmanager
    def _process(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
        try:
            process = subprocess.Popen(  # noqa: S603 (a fixed program, no shell)
                self._command(arguments),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environment,
            )
        except OSError as error:
            raise GitError(f"git cannot be started: {error}; is it installed?") from error
        with process:
            try:
                yield process
                is_read = process.stdout is None or not process.stdout.read(1)
            except BaseException:
                process.kill()
                raise
            if not is_read:  # the rest is not needed
                process.kill()
            elif process.wait() != 0:
                raise GitError(f"git {arguments[0]} failed in {self.folder}")

    def _told(self, *arguments: str, what: str | None = None) -> str:
        done = self._run(arguments)
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
            raise GitError(said or f"{self.folder} has no commit {what}")
        return os.fsdecode(done.stdout)

    def _maybe(self, *arguments: str) -> str:
        done = self._run(arguments)
        return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""

    def _run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(  # noqa: S603 (as above)
                self._command(arguments), env=self._environment, capture_output=True, check=False
            )
        except OSError as error:
            raise GitError(f"git cannot be started: {error}; is it installed?") from error

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return ["git", *_GUARDS, "-C", str(self.folder), *arguments]


def _skip(out: IO[bytes], size: int) -> None:
    while size > 0 and (part := out.read(min(size, _PART_BYTES))):
        size -= len(part)


def _entries(out: IO[bytes]) -> Iterator[bytes]:
    """Split at NULs."""
    held = b""
    while part := out.read(_PART_BYTES):
        *whole, held = (held + part).split(b"\0")
        yield from whole
    if held:
        yield held


class Commit:
    """The documents of a commit; a source is a file, known by its path in the folder."""

    is_paged = False

    def __init__(self, repository: Repository, *, patterns: Sequence[str] = (), url: str | None = None) -> None:
        self._repository = repository
        self._patterns = tuple(patterns)
        page = repository.page
        self._url = url or (None if page is None else url_of(f"{page}/blob/HEAD", repository.prefix))
        self.identity = ("git", str(repository.folder), *sorted(patterns))
        self.reading = Reading()

    async def documents(self) -> AsyncIterator[Item]:
        """Yield its documents in git's order, and faults."""
        try:
            for item in self._items():
                yield item
        except GitError as error:
            self.reading.is_listed = self.reading.is_whole = False
            self.reading.why = str(error)

    async def gone(self, source_ids: Sequence[str]) -> list[str]:
        """Return all of them: everything that exists was listed."""
        return list(source_ids)

    def _items(self) -> Iterator[Item]:
        wanted: list[tuple[_File, str]] = []
        for path, object_id in self._repository.files():
            media_type = media_type_of(path, self._patterns)
            if object_id is None or media_type is None:
                self.reading.pass_over(path)
            elif (fault := name_fault(path)) is not None:
                yield fault
            else:
                wanted.append((_File(path, object_id), media_type))
                self.reading.listed.add(path)
        if not wanted:
            return
        changed_at = self._repository.changed_at({file.path for file, _ in wanted})
        self.reading.times |= changed_at
        with self._repository.objects() as read:
            for file, media_type in wanted:
                yield self._found(file, media_type, changed_at, read)

    def _found(self, file: _File, media_type: str, changed_at: Mapping[str, int], read: Read) -> Item:
        try:
            raw = read(file.object_id)
        except UnreadableDocumentError as error:
            return Fault(file.path, str(error), file.path)
        published_at = time_or_none(changed_at[file.path]) if file.path in changed_at else None
        url = url_of(self._url, file.path)
        return SourceDocument(file.path, raw, media_type, title_of(file.path, media_type), url, published_at)


def insights(repository: Repository, channel: str) -> Iterator[InsightIngested | Fault]:
    """Yield every commit as an insight of a channel: its id, its time, and its subject."""
    page = repository.page
    for commit, ms, subject in repository.commits():
        text = clean(subject).strip()
        if not text:
            yield Fault(f"commit {commit}", "its message is empty")
            continue
        yield {
            "insight_id": commit,
            "channel_id": channel,
            "ts": ms,
            "text": text,
            "url": None if page is None else f"{page}/commit/{commit}",
            "embedding": None,
            "embedding_model": None,
        }
