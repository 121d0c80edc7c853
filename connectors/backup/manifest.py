"""The manifest of a backup: its files, its version, and the log positions that it contains.

Invariant: it is written last and names every file by its SHA-256, so a folder without it is not a backup, and a damaged
one is not restored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

import orjson

from highwater.schemas.errors import HighwaterError

FORMAT = 1
MANIFEST = "manifest.json"
_SEAL = "sha256"
_PIECE_BYTES = 1 << 20


class BackupError(HighwaterError):
    """A backup cannot be made or restored. See the reason; nothing was changed unless it says so."""


class File(TypedDict):
    """A file of the folder, as stored."""

    name: str
    bytes: int
    sha256: str


class Table(TypedDict):
    """A table as COPY wrote it, in text, compressed."""

    name: str
    columns: list[str]
    rows: int
    file: File


class Registered(TypedDict):
    """A schema of the registry under its id."""

    topic: str
    version: int
    schema_id: int
    schema: str


class TopicAt(TypedDict):
    """A topic at the time of the snapshot: its id, and one past the last offset of each partition, in order."""

    topic_id: str
    ends: list[int]


class Manifest(TypedDict):
    """The contents of `manifest.json`. `positions`: group -> topic -> partition -> next offset, as the snapshot has them."""

    format: int
    product: str
    taken_at: str
    migrations: list[list[str]]
    tables: list[Table]
    sequences: dict[str, int]
    topics: dict[str, TopicAt]
    positions: dict[str, dict[str, dict[str, int]]]
    registry: list[Registered]
    blobs: dict[str, int]


class Ahead(NamedTuple):
    """A position of the backup that the log does not have, and why."""

    position: str
    why: str


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it with the digest of its contents."""
    path = folder / MANIFEST
    body = orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)
    sealed = {_SEAL: hashlib.sha256(body).hexdigest(), "manifest": manifest}
    path.touch(mode=0o600)
    path.write_bytes(orjson.dumps(sealed, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2))


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder.

    Raises:
        BackupError: there is none, or it is damaged or has another format.
    """
    path = folder / MANIFEST
    try:
        sealed = orjson.loads(path.read_bytes())
        body: Any = sealed["manifest"]
        is_whole = hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest() == sealed[_SEAL]
    except FileNotFoundError:
        raise BackupError(f"{folder} has no backup: {MANIFEST} is missing (it is written last)") from None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise BackupError(f"{path} is damaged: its content does not match its digest")
    if body["format"] != FORMAT:
        raise BackupError(f"{path} has format {body['format']}, this version reads {FORMAT}; install {body['product']}")
    return cast("Manifest", body)


def files_of(manifest: Manifest) -> list[File]:
    """Return every file that the manifest names."""
    return [table["file"] for table in manifest["tables"]]


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compare every file with the manifest.

    Raises:
        BackupError: one is missing or has other content.
    """
    for file in files_of(manifest):
        path = folder / file["name"]
        digest = hashlib.sha256()
        try:
            with path.open("rb") as opened:
                while piece := opened.read(_PIECE_BYTES):
                    digest.update(piece)
        except FileNotFoundError:
            raise BackupError(f"{path} is missing; the backup is incomplete") from None
        if digest.hexdigest() != file["sha256"]:
            raise BackupError(f"{path} is damaged: its content does not match the manifest")


def check_migrations(manifest: Manifest, known: Mapping[str, str]) -> None:
    """Compare the migrations of the backup with those of this version, by name and digest.

    Raises:
        BackupError: this version does not know one of them.
    """
    unknown = [name for name, digest in manifest["migrations"] if known.get(name) != digest]
    if unknown:
        raise BackupError(
            f"the backup is of version {manifest['product']} with migration {unknown[0]}, which this version does not have; "
            f"restore it with {manifest['product']} or newer"
        )


def places_ahead(
    manifest: Manifest, topic_ids: Mapping[str, str], ends: Mapping[tuple[str, int], tuple[int, int]]
) -> list[Ahead]:
    """Return positions in the backup that the log does not hold, given the topic ids and the first and next offset of
    each partition.

    Empty topics that were deleted and recreated are not a loss: nothing of them had been read.
    """
    found: list[Ahead] = []
    for group, topics in sorted(manifest["positions"].items()):
        for topic, partitions in sorted(topics.items()):
            for partition, upto in sorted(partitions.items(), key=lambda item: int(item[0])):
                why = _why_ahead(manifest, topic, int(partition), upto, topic_ids, ends)
                if why is not None:
                    found.append(Ahead(f"{topic}/{partition}/{upto}", f"group {group} {why}"))
    return found


def _why_ahead(
    manifest: Manifest,
    topic: str,
    partition: int,
    upto: int,
    topic_ids: Mapping[str, str],
    ends: Mapping[tuple[str, int], tuple[int, int]],
) -> str | None:
    known = manifest["topics"].get(topic)
    held = ends.get((topic, partition))
    if known is None or not upto:
        return None
    if held is None or topic not in topic_ids:
        return f"had read up to {upto}, and the topic is not on the broker"
    if known["topic_id"] != topic_ids[topic]:
        return f"had read up to {upto} of a topic that was deleted and created again since"
    low, high = held
    if upto > high:
        return f"had read up to {upto}, the log ends at {high}"
    if upto < low:
        return f"had read up to {upto}, the log begins at {low}: events between were removed"
    return None


def positions_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, int]]]:
    """Return rows of `positions` as the manifest has them."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for row in rows:
        found.setdefault(row["group"], {}).setdefault(row["topic"], {})[str(row["partition"])] = row["next"]
    return found
