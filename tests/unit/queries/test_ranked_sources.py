"""Sources of an answer are found by whole words."""

from __future__ import annotations

from highwater.connectors.queries.stages import ranked_sources
from highwater.streams.queries.context import Source


def source(number: int, text: str) -> Source:
    """A source of a channel."""
    return Source(f"i{number}", "c", 1_700_000_000_000 + number, text, "t/0/1", 0.0)


def test_a_word_within_another_is_not_the_word() -> None:
    """`fixed` is in no `prefixed`; endings do not count, and a name of two parts is both of them."""
    found = ranked_sources(
        ["fixed", "tests"],
        [
            source(1, "Handle double-prefixed names in contests"),
            source(2, "Fix a test of the parser"),
            source(3, "none"),
        ],
    )
    assert [(one.insight_id, one.similarity) for one in found] == [("i2", 1.0), ("i3", 0.0), ("i1", 0.0)]


def test_a_phrase_is_had_as_a_whole() -> None:
    """All of its words, in whatever form."""
    found = ranked_sources(["tiered storage"], [source(1, "storage alone"), source(2, "Storage that is tiered")])
    assert [(one.insight_id, one.similarity) for one in found] == [("i2", 1.0), ("i1", 0.0)]
