"""Notes on disk are those of a dict, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from highwater.connectors.verify.effects import ExpectedRow
from highwater.connectors.verify.notes import Named, notes_on_disk


@pytest.fixture
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.usefixtures("_folder")
def test_what_was_noted_is_found(tmp_path: Path):
    """By kind and key, numbers apart from texts, the last value of each."""
    with notes_on_disk() as notes:
        one, other = Named(notes, "one"), Named(notes, "other")
        one["u", 1] = ExpectedRow({"a": None}, "t/0/1")
        one["u", 1] = ExpectedRow({"a": 2.5, "b": b"x"}, "t/0/2")
        other["u", "1"] = (3, None)
        assert one.get(("u", 1)) == ExpectedRow({"a": 2.5, "b": b"x"}, "t/0/2")
        assert other.get(("u", "1")) == (3, None)
        assert (other.get(("u", 1)), one.get(("u", "1")), one.get(("u",))) == (None, None, None)
        assert list(tmp_path.iterdir()) != []
    assert list(tmp_path.iterdir()) == []


def ending_early() -> None:
    """A verification that fails."""
    with notes_on_disk() as notes:
        notes["a", 1] = 2
        raise RuntimeError


@pytest.mark.usefixtures("_folder")
def test_an_error_leaves_nothing_behind(tmp_path: Path):
    """The folder goes either way."""
    with pytest.raises(RuntimeError):
        ending_early()
    assert list(tmp_path.iterdir()) == []
