"""The identity of a chunk."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.errors import InvalidEventError
from highwater.streams.chunks.identity import check_key_part, content_hash

PARTS = st.text(st.characters(exclude_characters="|", exclude_categories=["Cs"]), max_size=4)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@pytest.mark.requirement("R3.2")
def test_the_hash_is_that_of_the_five_values_joined():
    """SHA-256 in lower-case hex of `ns|slot|source_id|chunk_no|content` in UTF-8 (R3.2)."""
    made = content_hash("docs", "main", "straße.md", 10, " Größe | ½\n")
    assert made == sha256("docs|main|straße.md|10| Größe | ½\n".encode()).hexdigest()
    assert set(made) <= set("0123456789abcdef")


def test_the_text_is_hashed_as_it_is():
    """Neither trimmed nor normalised: a space or another form of a letter is another text."""
    texts = ["Café", "Cafe\u0301", "Café ", " Café", "café"]
    assert len({content_hash("a", "b", "c", 0, text) for text in texts}) == len(texts)


@given(
    st.tuples(PARTS, PARTS, PARTS, st.integers(0, 20), TEXTS), st.tuples(PARTS, PARTS, PARTS, st.integers(0, 20), TEXTS)
)
def test_different_chunks_have_different_hashes(
    one: tuple[str, str, str, int, str], other: tuple[str, str, str, int, str]
):
    """Also where texts hold the separator and numbers."""
    assert (content_hash(*one) == content_hash(*other)) == (one == other)


def test_a_text_that_cannot_be_stored_has_a_hash():
    """The hash distinguishes refusals of different texts."""
    assert content_hash("a", "b", "c", 0, "\ud800") != content_hash("a", "b", "c", 0, "\x00")


@pytest.mark.parametrize(
    ("value", "reason"),
    [("a|b", "separator"), ("|", "separator"), ("", "empty_id"), (" ", "empty_id"), ("a\nb", "control_character"),
     ("\ud800", "control_character"), ("x" * 513, "too_long"), ("ü" * 257, "too_long")],
)  # fmt: skip
def test_a_bad_part_of_a_key_is_refused(value: str, reason: str):
    """With the reason and the field."""
    with pytest.raises(InvalidEventError) as caught:
        check_key_part("slot", value)
    assert (caught.value.reason, caught.value.field) == (reason, "slot")


@pytest.mark.parametrize("value", ["docs", "api/chunks/routes.py", "a b", "ü" * 256, "https://x.y/?a=b&c"])
def test_a_good_part_of_a_key_is_taken(value: str):
    """Paths, addresses and names of any script."""
    check_key_part("source_id", value)
