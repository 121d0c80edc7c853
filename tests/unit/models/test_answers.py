"""The rules for any answer of a model before it is stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.models.answers import clean_text, json_object_in


@given(st.text(st.characters(exclude_categories=())))
def test_a_cleaned_text_can_be_stored(text: str) -> None:
    """It encodes as UTF-8, contains no U+0000, and a storable text is unchanged."""
    cleaned = clean_text(text)
    assert b"\x00" not in cleaned.encode()
    assert clean_text(cleaned) == cleaned


def test_an_object_is_found_alone_or_in_a_block() -> None:
    """The same reader serves the Archivist."""
    assert json_object_in('{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
