"""The remembered state of an origin between imports."""

from __future__ import annotations

import pytest

from highwater.connectors.sources.remembered import ImportRunsError, MemoryUnreadableError, Page, Remembered

ABOUT = ("files", "/srv/docs\udcff", "docs", "main")


def test_what_was_saved_is_there_again(tmp_path):
    """Sources and pages, of this origin in this slot and of no other."""
    page = Page('W/"x"', "https://x?page=2", 100, ["issues/1"], is_full=True)
    with Remembered.opened(tmp_path / "imports", ABOUT) as known:
        assert (set(), {}) == (known.sources, known.pages)
        known.sources |= {"a.md", "ü.md"}
        known.pages["https://x"] = page
        known.save()
    with Remembered.opened(tmp_path / "imports", ABOUT) as known:
        assert ({"a.md", "ü.md"}, {"https://x": page}) == (known.sources, known.pages)
    with Remembered.opened(tmp_path / "imports", (*ABOUT[:-1], "other")) as known:
        assert known.sources == set()


def test_two_imports_of_one_origin_do_not_run_at_once(tmp_path):
    """The second is refused while the first runs, and works after it."""
    with Remembered.opened(tmp_path, ABOUT):
        with pytest.raises(ImportRunsError, match="another process"), Remembered.opened(tmp_path, ABOUT):
            pass
        with Remembered.opened(tmp_path, (*ABOUT[:-1], "other")):
            pass
    with Remembered.opened(tmp_path, ABOUT):
        pass


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"version": 1, "sources": 5, "pages": {}}'])
def test_a_file_that_is_broken_is_named(tmp_path, content):
    """No file counts as known; the error names the file to remove."""
    with Remembered.opened(tmp_path, ABOUT) as known:
        known.save()
        path = known.path
    path.write_bytes(content)
    with pytest.raises(MemoryUnreadableError, match=r"\.json cannot be read"), Remembered.opened(tmp_path, ABOUT):
        pass


def test_pages_of_another_version_are_read_anew(tmp_path):
    """Pages that were cut differently are requested again; the sources stay known."""
    with Remembered.opened(tmp_path, ABOUT) as known:
        known.sources.add("a")
        known.pages["https://x"] = Page("x", None, 1, ["a"], is_full=True)
        known.save()
        path = known.path
    path.write_bytes(path.read_bytes().replace(b'"version":2', b'"version":1'))
    with Remembered.opened(tmp_path, ABOUT) as known:
        assert ({"a"}, {}) == (known.sources, known.pages)
