"""The manifest: a damaged file, another product and a log that lost what the backup had read are each one clear error."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from highwater.connectors.backup.manifest import (
    FORMAT,
    MANIFEST,
    BackupError,
    Manifest,
    check_files,
    check_migrations,
    places_ahead,
    read_manifest,
    write_manifest,
)

TOPIC = "feeds.insight-ingested"


def manifest_of(folder: Path, **changed: Any) -> Manifest:
    """A manifest of one table, whose file stands in the folder."""
    content = b"rows"
    (folder / "insights.copy.gz").write_bytes(content)
    file = {"name": "insights.copy.gz", "bytes": 4, "sha256": hashlib.sha256(content).hexdigest()}
    whole: Any = {
        "format": FORMAT, "product": "1.2.3", "taken_at": "2026-01-01T00:00:00Z", "migrations": [["0001_spine", "aa"]],
        "tables": [{"name": "insights", "columns": ["insight_id"], "rows": 1, "file": file}], "sequences": {},
        "topics": {TOPIC: {"topic_id": "one", "ends": [7]}}, "positions": {"insights": {TOPIC: {"0": 5}}}, "registry": [],
        "blobs": {"count": 0, "bytes": 0}, **changed,
    }  # fmt: skip
    found: Manifest = whole
    return found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Whole, readable by its owner alone, and its files are what it says."""
    manifest = manifest_of(tmp_path)
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    check_files(tmp_path, manifest)
    assert (tmp_path / MANIFEST).stat().st_mode & 0o777 == 0o600


def _change_a_number(path: Path) -> None:
    sealed = json.loads(path.read_bytes())
    sealed["manifest"]["positions"]["insights"][TOPIC]["0"] = 4
    path.write_text(json.dumps(sealed), encoding="utf-8")


@pytest.mark.parametrize(
    "damage",
    [_change_a_number, lambda path: path.write_bytes(path.read_bytes()[:-9]), lambda path: path.write_text("[]")],
)
def test_a_damaged_manifest_is_refused(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    """Cut short, another shape, or one number changed."""
    write_manifest(tmp_path, manifest_of(tmp_path))
    damage(tmp_path / MANIFEST)
    with pytest.raises(BackupError, match=r"manifest\.json is damaged"):
        read_manifest(tmp_path)


def test_a_folder_without_a_manifest_is_no_backup(tmp_path: Path) -> None:
    """Nor is one whose backup was interrupted."""
    with pytest.raises(BackupError, match=r"has no backup: manifest\.json is missing"):
        read_manifest(tmp_path)


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    """With its path."""
    manifest = manifest_of(tmp_path)
    (tmp_path / "insights.copy.gz").write_bytes(b"r0ws")
    with pytest.raises(BackupError, match=r"insights\.copy\.gz is damaged"):
        check_files(tmp_path, manifest)
    (tmp_path / "insights.copy.gz").unlink()
    with pytest.raises(BackupError, match=r"insights\.copy\.gz is missing"):
        check_files(tmp_path, manifest)


def test_another_format_names_the_version_to_install(tmp_path: Path) -> None:
    """Its digest is right, but this version does not know its meaning."""
    write_manifest(tmp_path, manifest_of(tmp_path, format=FORMAT + 1))
    with pytest.raises(BackupError, match=r"has format 2, this version reads 1; install 1\.2\.3"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("known", [{}, {"0001_spine": "bb"}])
def test_a_backup_of_a_newer_product_is_refused(tmp_path: Path, known: dict[str, str]) -> None:
    """By the migration that this version does not have, or has with another content."""
    with pytest.raises(BackupError, match=r"of version 1\.2\.3 with migration 0001_spine"):
        check_migrations(manifest_of(tmp_path), known)


def test_a_backup_of_an_older_product_is_taken(tmp_path: Path) -> None:
    """Newer migrations follow after its rows."""
    check_migrations(manifest_of(tmp_path), {"0001_spine": "aa", "0002_more": "bb"})


@pytest.mark.parametrize(
    ("topic_ids", "ends", "why"),
    [
        ({TOPIC: "one"}, {(TOPIC, 0): (0, 5)}, None),
        ({TOPIC: "one"}, {(TOPIC, 0): (5, 9)}, None),
        ({TOPIC: "one"}, {(TOPIC, 0): (0, 4)}, "group insights had read up to 5, the log ends at 4"),
        (
            {TOPIC: "one"},
            {(TOPIC, 0): (6, 9)},
            "group insights had read up to 5, the log begins at 6: events between were removed",
        ),
        (
            {TOPIC: "two"},
            {(TOPIC, 0): (0, 9)},
            "group insights had read up to 5 of a topic that was deleted and created again since",
        ),
        ({}, {}, "group insights had read up to 5, and the topic is not on the broker"),
    ],
)
def test_a_backup_that_is_ahead_of_the_log_is_refused(
    tmp_path: Path, topic_ids: dict[str, str], ends: dict[tuple[str, int], tuple[int, int]], why: str | None
) -> None:
    """The log ends before it, begins after it, or is another one."""
    found = places_ahead(manifest_of(tmp_path), topic_ids, ends)
    assert [one.why for one in found] == ([] if why is None else [why])
