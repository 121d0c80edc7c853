"""The terms of many texts at once are the terms of each."""

from __future__ import annotations

import numpy as np
import pytest

from highwater.streams.feeds.basis import terms_of
from highwater.streams.feeds.terms import terms_of_all

# Parts that the rules of `tokens` cut, keep, drop or treat separately, combined at random.
PIECES = (
    """a b Z e f 9 1 23 AB Ab aB Fix topicId topic_id ABCd v2 0b1 - _ / . , ' ' \u2019 the is don't x's KAFKA-123 GH-1 A-1 AB-1x
    aB-12 deadbeef1 deadbeef 0123456 1234567 Deadbeef1 www.x.y http://a.b/c \u00e9 \u00df \u65e5\u672c \u0130 \u00bd""".split(),  # noqa: SIM905 (prose reads better than 40 quotes)
    (" ", "\n", "\t", "\x00", "\x1f", "a" * 41, "A" * 20, "0f" * 33),
    (" ",),
)


def by_text(texts: list[str | None]) -> list[list[str]]:
    """The terms that are found at once, by text."""
    found: list[list[str]] = [[] for _ in texts]
    terms, numbers = terms_of_all(texts)
    for term, i in zip(terms, numbers.tolist(), strict=True):
        found[i].append(term)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_the_terms_of_a_batch_are_those_of_each_text(seed: int):
    """This holds for any texts and any neighbours in the batch."""
    draw = np.random.default_rng(seed)

    def piece() -> str:
        kind = PIECES[draw.choice(3, p=(0.6, 0.1, 0.3))]
        return kind[draw.integers(len(kind))]

    texts = [
        None if draw.random() < 0.03 else "".join(piece() for _ in range(draw.integers(12)))
        for _ in range(draw.integers(1, 60))
    ]
    assert [terms_of(text) for text in texts] == by_text(texts)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("KAFKA-123: fix topicId", ["fix", "topic", "id"]),
        ("AB-12-34 left", ["left"]),
        ("_AB-12 kept", ["ab", "kept"]),
        ("rock'n'roll", ["rock'n", "roll"]),
        ("a'b5c", ["a'b"]),
        ("at deadbeef1 gone", ["gone"]),
        ("at Deadbeef1 kept", ["deadbeef1", "kept"]),
        ("is the", ["is", "the"]),
        ("?! 12", ["?!", "12"]),
    ],
)
def test_what_is_cut_and_what_is_kept(text: str, terms: list[str]):
    """The same as of the text alone, by example."""
    assert (terms, terms) == (terms_of(text), by_text(["Before", text, "After"])[1])


def test_no_texts_have_no_terms():
    """An empty batch, and one of empty texts."""
    assert (by_text([]), by_text([None, ""])) == ([], [[], []])
