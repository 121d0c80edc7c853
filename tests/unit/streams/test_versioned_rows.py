"""Rows of tables with the version of their form."""

from __future__ import annotations

import pytest

from highwater.streams.versioned_rows import decode_facts, encode_facts


def test_a_row_gives_back_what_it_holds():
    """Its version comes first in the bytes, and is not a fact."""
    row = encode_facts(2, ["a", 1, None])
    assert row == b'[2,"a",1,null]'
    assert decode_facts(row, 2) == ["a", 1, None]


def test_a_row_of_a_newer_release_is_refused():
    """An older program does not misread it."""
    with pytest.raises(ValueError, match="a row of version 3, not 2: it was written by a newer release"):
        decode_facts(b"[3]", 2)
