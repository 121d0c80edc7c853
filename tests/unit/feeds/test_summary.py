"""The extractive summary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.feeds.summary import SENTENCE_CHARACTERS_MAX, summarise


def test_typical_texts_come_before_odd_ones():
    """A text about the most common subject is picked; an outlier and a repetition are not."""
    texts = [
        "Completely unrelated matter entirely",
        "Add share consumer acknowledgement tests",
        "Share consumer: document error callbacks in detail",
        "Add share consumer acknowledgement tests again",
    ]
    summary = summarise(texts, ["share", "consumer"], sentences_max=2).split("\n")
    assert summary == [texts[1], texts[2]]


def test_repeated_texts_appear_once():
    """A hundred copies make one line."""
    assert summarise(["lock file maintenance"] * 100) == "lock file maintenance"


def test_keywords_decide_between_equals():
    """Among two equally typical texts the one with a keyword is picked."""
    texts = ["alpha beta gamma delta one", "epsilon zeta eta theta two"]
    assert summarise(texts, ["zeta"], sentences_max=1) == texts[1]


def test_a_keyword_of_several_words_counts_by_its_words():
    """An identifier or a pair is as good a keyword as a word."""
    texts = ["alpha beta gamma delta one", "epsilon zetaEta eta theta two"]
    assert summarise(texts, ["zeta-eta"], sentences_max=1) == texts[1]
    assert summarise(texts, ["gamma delta"], sentences_max=1) == texts[0]


@pytest.mark.parametrize("texts", [[], [None], ["", "  "]])
def test_nothing_to_say_is_an_empty_string(texts):
    """No text, no summary, no error."""
    assert summarise(texts) == ""


def test_symbols_alone_still_say_something():
    """A text without words is shown rather than nothing."""
    assert summarise(["!!!", "!!!"]) == "!!!"


def test_a_long_text_is_cut_at_a_word():
    """Lines are short for a text of any size."""
    line = summarise(["sentence of words " * 300_000])
    assert len(line) <= SENTENCE_CHARACTERS_MAX + 1
    assert line.endswith(("sentence\u2026", "of\u2026", "words\u2026"))


@given(st.lists(st.one_of(st.none(), st.text(max_size=40)), max_size=8), st.integers(1, 4))
def test_a_summary_is_a_choice_of_the_texts(texts, sentences_max):
    """Every line is one of the texts on one line, in their order, at most as many as asked, each time the same."""
    summary = summarise(texts, sentences_max=sentences_max)
    lines = summary.split("\n") if summary else []
    given_lines = list(dict.fromkeys(" ".join((text or "").split()) for text in texts))
    assert lines == [line for line in given_lines if line in lines]
    assert len(lines) <= sentences_max
    assert bool(lines) == any((text or "").split() for text in texts)
    assert summary == summarise(texts, sentences_max=sentences_max)
