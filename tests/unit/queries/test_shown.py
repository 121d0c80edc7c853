"""Which sentences of a source are shown."""

from __future__ import annotations

from highwater.streams.queries.asked_kind import asked_value
from highwater.streams.queries.shown import TEXT_CHARACTERS_MAX, passage_of, shown_of
from highwater.streams.queries.words import words_of


def test_a_sentence_is_shown_before_code_with_the_same_words():
    """Code only where it shares more."""
    text = "```\nname session\n```\nIt ends.\n\nA session has a name of its own."
    assert shown_of(text, words_of("session name")) == "A session has a name of its own."
    assert shown_of("```\nname session\n```\nA session ends.", words_of("session name zero")) != "name session"
    assert shown_of("It ends.\n```\nname session\n```", words_of("session name")) == "name session"


def test_a_heading_is_shared_by_each_sentence_below_it():
    """So the person below "Author" is found, whom no sentence calls an author."""
    text = "Jane Doe, jane@doe.org\n\n" + "The author of the compressor had many ideas. " * 12
    wanted = words_of("author compressor")
    assert len(text) > TEXT_CHARACTERS_MAX
    assert passage_of(text, wanted, asked_value("Who?"), "Author").startswith("Jane Doe")
    assert passage_of(text, wanted, asked_value("Who?")).startswith("The author")


def test_a_rare_word_counts_more():
    """Of two sentences that share one word each, the one whose word the others do not have."""
    text = "Add typer to it.\n\nTyper is a library.\n\nThe old package is deprecated."
    assert shown_of(text, words_of("typer deprecated")) == "The old package is deprecated."
