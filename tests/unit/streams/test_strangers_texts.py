"""What computes on a stranger's text takes time in proportion to it: every expression, and each reader of texts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from highwater.connectors.retrieval.words import names_in
from highwater.streams.documents.chunking import Block, cut
from highwater.streams.documents.decoding import clean, decoded
from highwater.streams.documents.prose import sentences_of, tables_of, unmarked
from highwater.streams.documents.structure import csv_blocks, markdown_blocks, plain_blocks
from highwater.streams.feeds.phrases import unfiled
from highwater.streams.feeds.summary import summarise
from highwater.streams.feeds.tokens import spelled_words_of, words_of
from highwater.streams.jobs.decks import (
    Outline,
    Planned,
    outline_prompt,
    passages_of_blocks,
    passages_of_sections,
    slide_prompt,
)
from highwater.streams.jobs.layout import wide_measure, wrap
from highwater.streams.jobs.letters import letters_of
from highwater.streams.jobs.local_deck import local_deck_answer
from highwater.streams.line_diff import unified
from highwater.streams.models.answers import clean_text
from highwater.streams.models.leads import lead_of
from highwater.streams.models.tokens import count_tokens
from highwater.streams.queries.asked_kind import asked_kind, asked_value
from highwater.streams.queries.context import escape
from highwater.streams.queries.shown import passage_of, shown_of
from highwater.streams.queries.words import query_words
from highwater.streams.queries.words import words_of as query_words_of
from tests.attacks import ROOT, expressions_in, growth, slow_attack

WANTED = frozenset({"broker", "latency", "topic"})
OUTLINE = Outline("t", (Planned("a", ("b",)),))


def parts(text: str) -> list[tuple[str, str]]:
    """A text as sections of fifty letters, as a document that was cut into chunks is read."""
    return [("", text[first : first + 50]) for first in range(0, len(text), 50)]


def outline(text: str) -> str:
    """The outline of a deck from a text, by the built-in model."""
    return local_deck_answer("outline", outline_prompt("broker latency", 5, passages_of_sections("x", [("", text)]))[1])


def slide(text: str) -> str:
    """A slide from a text, by the built-in model."""
    return local_deck_answer(
        "slide-1", slide_prompt("broker latency", OUTLINE, 1, passages_of_sections("x", [("", text)]))[1]
    )


def compared(text: str) -> list[str]:
    """Two texts with as many lines in common as a comparison finds hardest."""
    return unified(
        [f"{place % 103}" for place in range(len(text))], [f"{2 * place % 103}" for place in range(len(text))], 3
    )


# Each reader with the texts that cost it most, of a hundred that were tried: what is repeated, and what stands before and after.
READERS: dict[str, tuple[Callable[[str], Any], tuple[tuple[str, str, str], ...]]] = {
    "prose.unmarked": (
        unmarked,
        tuple(("", part, "") for part in ("[a](", "![a](", "[a][", "<!--", "**a", " __a ", "\\", "`a", "<a")),
    ),
    "prose.sentences_of": (sentences_of, (("", "- a\n", ""), ("", "[a](", ""), ("a|", " ", "x"), ("", ". ", ""))),
    "prose.tables_of": (tables_of, (("", "|a|b|\n|-|-|\n", ""), ("|a|\n|", "-:", " x\n|b|"), ("|a|\n", " ", "-\n|b|"))),
    "structure.plain_blocks": (plain_blocks, (("", "\n", ""), ("", "a\n\n", ""))),
    "structure.markdown_blocks": (markdown_blocks, (("# ", "[a](", "\n\ntext\n"), ("", "# a\n", ""), ("#", "\t", "a"))),
    "structure.csv_blocks": (csv_blocks, (("", "|a|b|\n", ""), ("", "a,", "\na,b\n"), ('"', "a,", ""))),
    "chunking.cut": (lambda text: cut([Block(text)], count_tokens), (("", "\u4e2d", ""), ("", ".", ""), ("", "=", ""))),
    "decoding.decoded": (lambda text: decoded(text.encode()), (("", "a: b\n", ""), ("From a\n", "a: b\n ", ""))),
    "decoding.clean": (clean, (("", "\r", ""), ("", "\ufb00", ""))),
    "decks.passages_of_sections": (
        lambda text: passages_of_sections("x", [("", text)]),
        (("|a|\n", "-:", " x"), ("", "\n ", "x"), ("", "a ", ""), ("", "|a|b|\n|-|-|\n", "")),
    ),
    "decks.passages_of_sections (parts)": (
        lambda text: passages_of_sections("x", parts(text)),
        (("```\n", "a b\n", ""), ("", "|a|b|\n", ""), ("", "a ", "")),
    ),
    "decks.passages_of_blocks": (lambda text: passages_of_blocks("x", markdown_blocks(text)), (("", "# a\n", ""),)),
    "local_deck: outline": (outline, (("", "\na\n=\n", ""), ("", "- a b c d.\n", ""))),
    "local_deck: slide": (slide, (("", "- a\n", ""), ("", "|a|b|\n|-|-|\n", ""))),
    "layout.wrap": (lambda text: wrap(text, 12, 300, wide_measure), (("", "a(", ""), ("", "a ", ""))),
    "letters.letters_of": (lambda text: list(letters_of(text)), (("", "\u0301", ""), ("", "\U0001f1e9", ""))),
    "shown.passage_of": (
        lambda text: passage_of(text, WANTED, None),
        (("", "[a](", ""), ("", "- a\n", ""), ("", "a. ", "")),
    ),
    "shown.shown_of": (lambda text: shown_of(text, WANTED, None), (("", "[a](", ""), ("", "|a|b|\n", ""))),
    "words.words_of": (query_words_of, (("", "1.", ""), ("", "aB", ""), ("", "a-", ""))),
    "words.query_words": (query_words, (("", "1.", ""), ("", "a/", ""))),
    "asked_kind.asked_kind": (asked_kind, (("which ", "a ", ""), ("which version of ", "A", ""))),
    "asked_kind.asked_value": (asked_value, (("who ", "Aa", ""), ("when ", "1 ", ""))),
    "asked_kind.PERSON": (
        lambda text: asked_value("who made it?").named_in(text),  # type: ignore[union-attr]
        (("", "Maintaine", ""), ("", "By A", ""), ("", "Aa ", "")),
    ),
    "context.escape": (escape, (("", "<", ""), ("", "</ ", ""), ("<", " ", ""))),
    "tokens.count_tokens": (count_tokens, (("", "a", ""), ("", "\u4e2d", ""), ("", "a ", ""))),
    "line_diff.unified": (compared, (("", "0 1 2 3 ", ""), ("", "a ", ""))),
    "answers.clean_text": (clean_text, (("", "\0", ""),)),
    "leads.lead_of": (lead_of, (("", "a ", ""), ("", "\n ", ""), ("", "-", ""))),
    "feeds.tokens.words_of": (words_of, (("", "aB", ""), ("", "\u0e01", ""), ("", "a'", ""))),
    "feeds.tokens.spelled_words_of": (spelled_words_of, (("", "aB", ""), ("", "\u0e01", ""))),
    "feeds.phrases.unfiled": (unfiled, (("", "\n", "a"), ("", "by ", ""), ("fix(", "a", ""))),
    "feeds.summary.summarise": (lambda text: summarise([text, text]), (("", "a. ", ""), ("", "[a](", ""))),
    "retrieval.words.names_in": (names_in, (("", "1", ""), ("", "a-", ""))),
}


READER_GROWTH_MAX = 1.6


@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_time_in_proportion_to_a_text(name: str) -> None:
    """The exponent of its growth is that of linear work, for the texts that cost it most."""
    read, worst = READERS[name]
    # The lowest of some measurements: a busy machine and steps of the caches only add to it, and a quadratic reader has 2.
    slow = {
        text for text in worst if all(growth(read, partial(_repeated, *text)) > READER_GROWTH_MAX for _ in range(3))
    }
    assert slow == set()


def _repeated(before: str, part: str, after: str, size: int) -> str:
    return before + part * (size // len(part)) + after


FOLDERS = [f"streams/{path.name}" for path in sorted((ROOT / "streams").iterdir()) if (path / "__init__.py").exists()]


@pytest.mark.parametrize("folder", [*FOLDERS, "connectors", "api"])
def test_every_expression_takes_time_in_proportion_to_a_text(folder: str) -> None:
    """No part of it, repeated before something that does not fit, is tried in combination with its other repetitions."""
    slow = {f"{name}, {how}": found for name, how, one in expressions_in(folder) if (found := slow_attack(one, how))}
    assert slow == {}


def test_the_inventory_is_complete() -> None:
    """The document names each reader that is measured here."""
    document = (ROOT / "docs" / "strangers-texts.md").read_text(encoding="utf-8")
    assert [name for name in READERS if f"`{name}`" not in document] == []
