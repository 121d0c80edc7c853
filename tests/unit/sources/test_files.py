"""A folder as documents."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from highwater.connectors.sources.files import Folder, media_type_of
from tests.unit.sources.origins import drawn


def put(folder: Path, name: str, content: bytes = b"text", *, seconds: int = 1_600_000_000) -> None:
    """A file with a time of its own."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (seconds, seconds))


async def test_a_source_is_a_file_known_by_its_path(tmp_path):
    """Path with `/`, media type by suffix, the time it was changed, an address below the base; hidden files are left alone."""
    put(tmp_path, "read me.md", seconds=1_500_000_000)
    put(tmp_path, "guide/start.HTML")
    put(tmp_path, "image.PNG")
    put(tmp_path, ".git/notes.md")
    put(tmp_path, "guide/.draft.md")
    origin = Folder(tmp_path, url="https://example.org/docs/")
    found, faults = await drawn(origin)
    assert list(found) == ["guide/start.HTML", "read me.md"]
    read_me = found["read me.md"]
    assert (read_me.media_type, read_me.published_at) == ("text/markdown", 1_500_000_000_000)
    assert (read_me.url, read_me.raw) == ("https://example.org/docs/read%20me.md", b"text")
    assert found["guide/start.HTML"].media_type == "text/html"
    assert ([], 1, {".png": 1}, set(found), True) == (
        faults,
        origin.reading.passed_over,
        origin.reading.suffixes,
        origin.reading.listed,
        origin.reading.is_listed,
    )


async def test_a_table_is_titled_by_its_file(tmp_path):
    """Only its name says what the rows are of; other documents have headings."""
    put(tmp_path, "lists/debian.csv", b"version,name\n12,Bookworm\n")
    put(tmp_path, "a.md")
    found, _ = await drawn(Folder(tmp_path))
    assert (found["lists/debian.csv"].title, found["a.md"].title) == ("debian", None)


async def test_nothing_outside_the_folder_is_read(tmp_path):
    """Links, to files or folders, and pipes are passed over, neither followed nor waited for."""
    secret = tmp_path / "secret"
    put(secret, "key.md", b"secret")
    folder = tmp_path / "docs"
    put(folder, "a.md")
    (folder / "link.md").symlink_to(secret / "key.md")
    (folder / "more").symlink_to(secret)
    os.mkfifo(folder / "pipe.md")
    origin = Folder(folder)
    found, faults = await drawn(origin)
    assert (list(found), faults, origin.reading.passed_over) == (["a.md"], [], 3)


async def test_a_file_that_cannot_be_read_is_there_all_the_same(tmp_path):
    """It is a fault of its own source, so it does not count as gone."""
    put(tmp_path, "a.md")
    put(tmp_path, "b.md")
    origin = Folder(tmp_path)
    items = origin.documents()
    assert (await anext(items)).source_id == "a.md"
    (tmp_path / "b.md").unlink()
    (tmp_path / "b.md").symlink_to(tmp_path / "a.md")
    fault = await anext(items)
    assert (fault.source_id, "cannot be read" in fault.why) == ("b.md", True)
    assert {"a.md", "b.md"} == origin.reading.listed


async def test_a_folder_that_cannot_be_read_leaves_open_what_is_in_it(tmp_path, monkeypatch):
    """It is a fault, the rest is read, and the listing no longer implies deletions."""
    put(tmp_path, "a.md")
    put(tmp_path, "locked/b.md")
    scandir = os.scandir

    def refusing(path):
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    origin = Folder(tmp_path)
    found, faults = await drawn(origin)
    assert (list(found), [f.where for f in faults], origin.reading.is_listed) == (["a.md"], ["locked/"], False)


async def test_names_that_cannot_be_sources_are_named(tmp_path):
    """A `|`, a line end and bytes that are no text: each is a fault, and the others are read."""
    for name in (b"a|b.md", b"a\nb.md", b"a\xff.md", b"good.md"):
        (tmp_path / os.fsdecode(name)).write_bytes(b"text")
    found, faults = await drawn(Folder(tmp_path))
    assert list(found) == ["good.md"]
    assert sorted(["a|b.md", "a\nb.md", "a\udcff.md"]) == sorted(fault.where for fault in faults)


@pytest.mark.parametrize(
    ("path", "patterns", "media_type"),
    [
        ("a.md", (), "text/markdown"),
        ("a.PDF", (), "application/pdf"),
        ("a.py", (), None),
        ("src/a.py", ("*.py",), "text/plain"),
        ("a.md", ("*.py",), None),
        ("docs/a.md", ("docs/*",), "text/markdown"),
        ("README", ("README",), "text/plain"),
    ],
)
def test_which_files_are_documents(path, patterns, media_type):
    """Known suffixes, or what matches a pattern; an unknown suffix is read as text."""
    assert media_type == media_type_of(path, patterns)


def test_options_that_decide_what_is_there_are_part_of_the_identity(tmp_path):
    """A folder imported with other patterns is another origin: nothing of the one is gone from the other."""
    assert Folder(tmp_path).identity != Folder(tmp_path, patterns=["*.py"]).identity
    assert Folder(tmp_path, patterns=["*.py"]).identity == Folder(tmp_path / ".", patterns=["*.py"]).identity
