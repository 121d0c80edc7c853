"""Insights are scored by whole words and by vectors, and a distant one is not a source."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from highwater.connectors.queries.stages import SOURCES_TOLD, nearest
from highwater.connectors.retrieval.insights import Words, scored
from highwater.streams.queries.context import Source
from highwater.streams.queries.words import words_of

OWN = frozenset(map(words_of, ("fixed", "tests", "tiered storage", "word")))


def row(number: int, text: str, vector: list[float] | None = None) -> dict[str, Any]:
    """A row of `insights_to_score`."""
    return {
        "insight_id": f"i{number}",
        "channel_id": "c",
        "ts": datetime.fromtimestamp(1_700_000_000 + number, UTC),
        "text": text,
        "source_partition": 0,
        "source_offset": number,
        "vector": None if vector is None else np.asarray(vector, "<f4").tobytes(),
    }


def asked(*words: str) -> Words:
    """Words that one insight of ten has each."""
    return Words({words_of(word): 1 for word in words}, 10)


def source(number: int, similarity: float, share: float) -> Source:
    """A source that was found."""
    return Source(f"i{number}", "c", number, "text", "t/0/1", similarity, share)


def test_a_word_within_another_is_not_the_word() -> None:
    """`fixed` is in no `prefixed`; endings do not count, and a phrase is had as a whole."""
    rows = [row(1, "Handle double-prefixed names in contests"), row(2, "Fix a test of the parser"), row(3, "tiered")]
    found = scored(asked("fixed", "tests", "tiered storage"), rows, None, own=OWN)
    assert [(one.insight_id, one.share) for one in found] == [("i2", 0.6667), ("i3", 0.0), ("i1", 0.0)]


def test_meaning_counts_beside_words() -> None:
    """Among two texts without the words the nearer by its vector comes first; a vector of another length is not compared."""
    query = np.asarray([1.0, 0.0], "<f4").tobytes()
    rows = [row(1, "a b", [1.0, 0.0]), row(2, "a b", [0.0, 1.0]), row(3, "a b", [1.0, 0.0, 0.0])]
    found = scored(asked("word"), rows, query, own=OWN)
    assert [(one.insight_id, one.similarity) for one in found] == [("i1", 0.6), ("i3", 0.0), ("i2", 0.0)]


def test_words_suffice_where_the_model_does_not_read_the_question() -> None:
    """Its vectors take nothing from a text with a word of two, and still find one that has no word as it is written."""
    query = np.asarray([1.0, 0.0], "<f4").tobytes()
    rows = [row(1, "word", [0.15, 0.0]), row(2, "wards", [0.5, 0.0])]
    read, unread = (scored(asked("word", "fixed"), rows, query, own=OWN, is_read=is_read) for is_read in (True, False))
    assert [(one.insight_id, one.similarity) for one in read] == [("i2", 0.3), ("i1", 0.29)]
    assert [(one.insight_id, one.similarity) for one in unread] == [("i1", 0.5), ("i2", 0.3)]


def test_a_word_of_the_analyzer_that_nobody_has_does_not_count() -> None:
    """It replaces a word of the question, whose share of words is reported."""
    held = Words({words_of("word"): 1, words_of("synonym"): 0, words_of("term"): 2}, 10)
    (found,) = scored(held, [row(1, "a word")], None, own=OWN)
    assert found.share == 1.0
    assert list(held.weights(OWN)) == [words_of("word"), words_of("term")]


def test_what_is_not_near_is_no_source() -> None:
    """Neither words alone nor nearness alone are enough."""
    sources = [source(1, 0.5, 0.3), source(2, 0.4, 0.3), source(3, 0.9, 0.1), source(4, 0.3, 0.9), source(5, 0.4, 0.3)]
    assert [one.insight_id for one in nearest(sources)] == ["i1", "i5", "i2"]
    assert len(nearest([source(number, 0.5, 0.5) for number in range(2 * SOURCES_TOLD)])) == SOURCES_TOLD
