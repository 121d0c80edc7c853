"""Shared parts of the tests of sources: an origin read to its end, and a repository created for a test."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from highwater.connectors.documents.reading import DocumentReader
from highwater.connectors.sources.chunked import Fault, Origin, SourceDocument, Submission, Target, cut_all
from highwater.schemas.chunks import INGEST_FINISHED

NOW_MS = 1_790_000_000_000


async def drawn(origin: Origin) -> tuple[dict[str, SourceDocument], list[Fault]]:
    """The documents of an origin by source, and its faults."""
    items = [item async for item in origin.documents()]
    return (
        {item.source_id: item for item in items if isinstance(item, SourceDocument)},
        [item for item in items if isinstance(item, Fault)],
    )


async def submitted(
    origin: Origin, **options: bool
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]], list[Fault]]:
    """The chunks that an import of the origin hands over, its ends by source, and its faults."""
    events: list[tuple[str, Mapping[str, Any]]] = []
    faults: list[Fault] = []
    submission = Submission(
        Target("i", "docs", "main", **options),
        lambda topic, event: events.append((topic, event)),
        lambda: NOW_MS,
        is_paged=origin.is_paged,
        report=faults.append,
    )
    async for item in cut_all(origin.documents(), DocumentReader()):
        submission.take(item)
    submission.conclude(origin.reading)
    ends = {event["source_id"]: dict(event) for topic, event in events if topic == INGEST_FINISHED}
    return [dict(event) for topic, event in events if topic != INGEST_FINISHED], ends, faults


class Repo:
    """A git repository whose commits have the times that the test gives them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str, seconds: int = 1_600_000_000, stdin: bytes = b"") -> bytes:
        """Run git as a given author, at a time."""
        who = {"NAME": "Ada", "EMAIL": "ada@example.org", "DATE": f"{seconds} +0200"}
        environment = {f"GIT_{role}_{name}": value for role in ("AUTHOR", "COMMITTER") for name, value in who.items()}
        command = ["git", "-c", "protocol.file.allow=always", "-C", str(self.folder), *arguments]
        done = subprocess.run(
            command,
            env={"PATH": "/usr/bin:/bin", "HOME": "/nowhere", **environment},
            input=stdin,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def commit(self, message: str, files: Mapping[str | bytes, str | bytes], *, seconds: int = 1_600_000_000) -> str:
        """Commit these contents, under any names; return the commit's id."""
        for name, content in files.items():
            raw = content if isinstance(content, bytes) else content.encode()
            path = name if isinstance(name, bytes) else name.encode()
            blob = self.git("hash-object", "-w", "--stdin", stdin=raw).strip()
            self.git("update-index", "--add", "-z", "--index-info", stdin=b"100644 " + blob + b"\t" + path + b"\0")
        self.git("commit", "-q", "--allow-empty", "--allow-empty-message", "-m", message, seconds=seconds)
        return self.git("rev-parse", "HEAD").decode().strip()
