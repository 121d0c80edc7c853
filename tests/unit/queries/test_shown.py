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
    """Of two sentences that share one word each, the one with the rarer word is shown."""
    text = "Add typer to it.\n\nTyper is a library.\n\nThe old package is deprecated."
    assert shown_of(text, words_of("typer deprecated")) == "The old package is deprecated."


TABLE = """| version | codename | created | release |
| - | - | - | - |
| 11 | Bullseye | 2019-07-06 | 2021-08-14 |
| 12 | Bookworm | 2021-08-14 | 2023-06-10 |
"""


def test_a_row_of_a_table_names_its_columns():
    """A row is shown alone, also of a long table, and each value follows the name of its column."""
    row = "12: codename: Bookworm, created 2021-08-14, release 2023-06-10"
    assert shown_of(TABLE, words_of("12 released")) == row
    passage = passage_of(TABLE + "| 13 | Trixie | 2023-06-10 | 2025-08-09 |\n" * 9, words_of("12 released"), None)
    assert shown_of(passage, words_of("12 released")) == row
    assert shown_of("| 12 | Bookworm |\n| 13 | Trixie |", words_of("bookworm")) == "12 \u00b7 Bookworm"


def test_an_item_of_a_list_is_shown_without_the_next():
    """It is about something else; the items behind a line that introduces them belong to it."""
    text = "- RSLGTM: Looks good to me.\n- RSS: Resident set size."
    assert shown_of(text, words_of("RSLGTM")) == "RSLGTM: Looks good to me."
    assert (
        shown_of("The features are:\n\n- A log.\n- A table.", words_of("features"))
        == "The features are: A log. A table."
    )
