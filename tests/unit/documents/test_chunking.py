"""Documents in chunks: nothing is lost, nothing is too long, and the structure is kept."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from highwater.streams.documents.chunking import (
    TITLE_CHARACTERS_MAX,
    Block,
    Chunk,
    Count,
    cut,
    divided,
    kept,
    left_out_of,
    pack,
)
from highwater.streams.models.tokens import count_tokens

LIMIT = 24


TEXTS = st.text(st.sampled_from("ab z. !?\n\t。日…\"'"), max_size=400)
BLOCKS = st.lists(st.builds(Block, TEXTS, st.integers(0, 3)), max_size=8)


@given(TEXTS)
@example("." * 2_000)
@example("x" * 500)
@example("\n" + " " * 900 + "x\n" * 300)
def test_the_parts_of_a_text_are_the_text(text: str):
    """This holds for any text; and each part fits."""
    parts = list(divided(text, count_tokens, LIMIT))
    assert "".join(parts) == text
    assert all(count_tokens(part) <= LIMIT for part in parts)


@pytest.mark.parametrize("count", [count_tokens, len])
@given(texts=st.lists(TEXTS, max_size=6))
@example(texts=["x" * 11, "x" * 12])
def test_texts_together_lose_no_letter(count: Count, texts: list[str]):
    """Only white space at their ends is lost; and a joined text fits, for any way of counting."""
    packed = list(pack(texts, count, LIMIT))
    assert "".join("".join(packed).split()) == "".join("".join(texts).split())
    assert all(count(content) <= LIMIT for content in packed)


@given(BLOCKS)
def test_every_word_is_in_a_chunk_or_a_title(blocks: list[Block]):
    """Every word of a document is found, or is marked as left out; no chunk is empty or too long."""
    chunks = cut(blocks, count_tokens, LIMIT)
    assert all(chunk.content and count_tokens(chunk.content) <= LIMIT for chunk in chunks)
    in_text = ["".join("".join(chunk.content for chunk in chunks).split()), *(chunk.title or "" for chunk in chunks)]
    assert cut(kept(blocks), count_tokens, LIMIT) == cut([Block(*block[:2]) for block in blocks], count_tokens, LIMIT)
    told = [text for _, text in left_out_of(blocks)]
    for block in blocks:
        shown = told if block.left_out else in_text
        for word in block.text.split():
            assert any(word in text for text in shown)


@given(BLOCKS)
def test_texts_keep_their_order(blocks: list[Block]):
    """Texts between headings are in the chunks in the same order."""
    texts = [Block(block.text) for block in blocks]
    chunks = cut(texts, count_tokens, LIMIT)
    assert "".join("".join(c.content for c in chunks).split()) == "".join("".join(b.text for b in texts).split())


def test_a_chunk_never_reaches_over_a_heading():
    """However short the sections are; the headings above are its title."""
    blocks = [
        Block("Log", 1),
        Block("A log is a sequence."),
        Block("Offsets", 2),
        Block("They are dense."),
        Block("They never go back."),
        Block("Retention", 2),
        Block("By time or size."),
        Block("Groups", 1),
        Block("They share partitions."),
    ]
    assert cut(blocks, count_tokens) == [
        Chunk("A log is a sequence.", "Log"),
        Chunk("They are dense.\n\nThey never go back.", "Log > Offsets"),
        Chunk("By time or size.", "Log > Retention"),
        Chunk("They share partitions.", "Groups"),
    ]


def test_a_heading_with_nothing_below_is_a_chunk():
    """It is the only place where its words are; one with sections below stands in their titles."""
    blocks = [Block("Guide", 1), Block("To do", 2), Block("Done", 2), Block("All of it.")]
    assert cut(blocks, count_tokens) == [Chunk("To do", "Guide"), Chunk("All of it.", "Guide > Done")]


def test_a_long_text_is_cut_at_its_best_places():
    """Between paragraphs before sentences, between sentences before words."""
    first, second = "One two three four five six. " * 2, "Seven eight nine ten eleven."
    limit = count_tokens(first) + 2
    assert list(pack([f"{first.strip()}\n\n{second}"], count_tokens, limit)) == [first.strip(), second]
    sentences = ["One two three four. ", "Five six seven eight. ", "Nine ten eleven twelve."]
    limit = sum(map(count_tokens, sentences[:2]))
    assert list(pack(["".join(sentences)], count_tokens, limit)) == ["".join(sentences[:2]).strip(), sentences[2]]


def test_a_long_heading_is_a_paragraph():
    """A line that is wrongly marked as a heading loses no word; deep titles keep the innermost headings."""
    long = "word " * 60
    assert [chunk.title for chunk in cut([Block(long, 1), Block("text")], count_tokens)] == [None]
    deep = [Block(f"{level} " + "x" * 150, level) for level in range(1, 6)]
    chunks = cut([*deep, Block("text")], count_tokens)
    assert all(len(chunk.title or "") <= TITLE_CHARACTERS_MAX for chunk in chunks)
    assert {"1", "2", "3", "4", "5"} <= {word for chunk in chunks for word in f"{chunk.title} {chunk.content}".split()}


@pytest.mark.parametrize("text", ["", " \n\t "])
def test_nothing_gives_no_chunk(text: str):
    """A document of white space has no chunks."""
    assert cut([Block(text), Block(text, 1)], count_tokens) == []


def test_the_same_document_gives_the_same_chunks():
    """A chunk is known by its number: cut again it has the same content under it."""
    blocks = [Block("Title", 1), *(Block(f"Paragraph {number}. " * 30) for number in range(20))]
    assert cut(blocks, count_tokens, 64) == cut(list(blocks), count_tokens, 64)


def test_a_table_that_is_cut_keeps_its_header():
    """In each of its chunks, which fit; between them no row is lost. A header of half a chunk stands once."""
    header, rows = "| version | name |\n| - | - |\n", [f"| {number} | Name {number} |\n" for number in range(60)]
    chunks = [chunk.content for chunk in cut([Block("Text."), Block(header + "".join(rows))], count_tokens, 100)]
    assert len(chunks) > 3
    assert all(header in chunk and count_tokens(chunk) <= 100 for chunk in chunks)
    assert "".join(chunk.partition(header)[2].strip() + "\n" for chunk in chunks) == "".join(rows)
    wide = cut([Block(header + "".join(rows))], count_tokens, 30)
    assert sum(header.strip() in chunk.content for chunk in wide) == 1
