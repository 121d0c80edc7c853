"""Decks on pages: nothing is lost and nothing runs over the edge."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.connectors.jobs.pdf_file import write_pdf
from highwater.connectors.jobs.pptx_file import write_pptx
from highwater.streams.jobs.layout import (
    BODY_BOTTOM,
    BODY_SIZES,
    INDENT,
    LEADING,
    PAGE_HEIGHT,
    TEXT_WIDTH,
    TITLE_LINES,
    Deck,
    Slide,
    _height,
    lay_out,
    lay_out_title,
    plain,
    wide_measure,
    wrap,
)

TEXTS = st.text(st.sampled_from("abc  .日\n\t\x07é"), max_size=600)
SLIDES = st.builds(Slide, TEXTS, st.lists(TEXTS, max_size=12).map(tuple))


@given(SLIDES)
@settings(max_examples=60)
def test_no_letter_is_lost(slide: Slide):
    """The points of a slide's pages together are its points; each has one bullet."""
    pages = lay_out(slide, wide_measure)
    paragraphs = [paragraph for page in pages for paragraph in page.paragraphs]
    points = [plain(point) for point in slide.points if plain(point)]
    shown = "".join(paragraph.text for paragraph in paragraphs)
    assert "".join(shown.split()) == "".join("".join(points).split())
    assert len(points) == sum(not paragraph.is_begun for paragraph in paragraphs)
    assert [(page.part, page.parts) for page in pages] == [(n, len(pages)) for n in range(1, len(pages) + 1)]


@given(SLIDES)
@settings(max_examples=60)
def test_nothing_runs_over_the_edge(slide: Slide):
    """Every line fits the width, and the points of a page its height, whatever is written."""
    for page in lay_out(slide, wide_measure):
        assert all(wide_measure(line.rstrip(), page.title_size) <= TEXT_WIDTH for line in page.title_lines)
        for paragraph in page.paragraphs:
            for line in paragraph.lines:
                assert wide_measure(line.rstrip(), page.body_size) <= TEXT_WIDTH - INDENT
        room = max(PAGE_HEIGHT - page.body_top - BODY_BOTTOM, BODY_SIZES[-1] * LEADING)
        assert _height(page.paragraphs, page.body_size) <= room or page.body_size == BODY_SIZES[-1]


def test_letters_get_smaller_before_a_page_goes_on():
    """A few points are large, more are smaller, and too many go on on a page of the same title."""
    sizes = [lay_out(Slide("t", ("point",) * count), wide_measure) for count in (3, 12, 60)]
    assert [pages[0].body_size for pages in sizes[:2]] == [24.0, 18.0]
    assert [len(pages) for pages in sizes[:2]] == [1, 1]
    assert (len(sizes[2]) > 1, sizes[2][0].shown_title) == (True, f"t (1/{len(sizes[2])})")


def test_a_title_takes_two_lines_before_it_gets_smaller():
    """The longest that a deck may have fits two lines."""
    page = lay_out_title(Deck("word " * 20, ()), wide_measure)
    assert (page.title_size < 32.0 or len(page.title_lines) <= TITLE_LINES) is True
    assert len(lay_out_title(Deck("t" * 80 + " " + "u" * 79, ()), wide_measure).title_lines) <= 4


def test_a_word_wider_than_the_page_is_broken():
    """In parts that fit; its letters are all there."""
    lines = wrap("x" * 500, 14, 200, wide_measure)
    assert "".join(lines) == "x" * 500
    assert all(wide_measure(line, 14) <= 200 for line in lines)


DECK = 'Deck("A — Ж 日本 한국 😀", (Slide("One", ("a", "b" * 300), "notes"), Slide("", ()), Slide("Two", ("c " * 900,) * 4)))'


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_same_deck_is_the_same_file(seed: str):
    """Whichever process writes it: its bytes are a function of the deck."""
    program = (
        "import hashlib, time; from highwater.streams.jobs.layout import Deck, Slide\n"
        "from highwater.connectors.jobs.pdf_file import write_pdf\n"
        "from highwater.connectors.jobs.pptx_file import write_pptx\n"
        f"deck = {DECK}\n"
        "print(*(hashlib.sha256(write(deck)).hexdigest() for write in (write_pdf, write_pptx)))"
    )
    from hashlib import sha256

    deck = eval(DECK)
    told = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": seed, "TZ": "Asia/Tokyo"},
    ).stdout.split()
    assert told == [sha256(write(deck)).hexdigest() for write in (write_pdf, write_pptx)]
