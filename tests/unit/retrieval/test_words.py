"""Which words of a question are used to find chunks."""

from __future__ import annotations

import pytest

from highwater.connectors.retrieval.words import AskedWords

WORDS = AskedWords(
    any_word="'a' | 'b' | 'c'",
    all_words="'a' & 'b' & 'c'",
    queries=["'a'", "'b'", "'c'"],
    counts=[3, 50, 400],
    weights=[0.5, 0.3, 0.2],
    saturation=0.3,
    saturation_per_octet=0.01,
    rare=1,
)


def test_a_chunk_without_a_rare_word_scores_what_the_others_weigh():
    """Where no word is rare nothing is known: it may score all."""
    assert (WORDS.rare_words, WORDS.candidates, WORDS.rest) == ("'a'", 3, pytest.approx(0.5))
    none = WORDS._replace(rare=0)
    assert (none.rare_words, none.candidates, none.rest) == ("'a'", 0, 1.0)


@pytest.mark.parametrize(
    ("bound", "more_max", "rare"),
    [(0.2, 100, 2), (0.0, 450, 3), (0.0, 449, None), (0.2, 49, None), (-1.0, 1_000, None)],
)
def test_as_few_more_words_as_settle_a_search(bound: float, more_max: int, rare: int | None):
    """None where too many chunks have them, or where all words together do not settle it."""
    more = WORDS.settling(lambda rest: rest <= bound + 1e-9, more_max)
    assert (more and more.rare) == rare
