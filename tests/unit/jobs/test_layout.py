"""Decks on pages: nothing is lost and nothing runs over the edge."""

from __future__ import annotations

import io
import subprocess
import sys

import pptx
import pypdf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from highwater.connectors.jobs.pdf_file import write_pdf
from highwater.connectors.jobs.pictures import plate_of
from highwater.connectors.jobs.pptx_file import write_pptx
from highwater.streams.jobs.layout import (
    BODY_BOTTOM,
    BODY_SIZES,
    CELL_PADDING,
    INDENT,
    LEADING,
    LOGO_TOP,
    PAGE_HEIGHT,
    TEXT_WIDTH,
    TITLE_LINES,
    Deck,
    Slide,
    Table,
    Theme,
    UnreadableLogoError,
    _height,
    chart_of,
    grid_of,
    lay_out,
    lay_out_title,
    logo_size,
    luminance,
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
    """Every line fits the width, and the points of a page fit its height, for any text."""
    for page in lay_out(slide, wide_measure):
        assert all(wide_measure(line.rstrip(), page.title_size) <= TEXT_WIDTH for line in page.title_lines)
        for paragraph in page.paragraphs:
            for line in paragraph.lines:
                assert wide_measure(line.rstrip(), page.body_size) <= TEXT_WIDTH - INDENT
        room = max(PAGE_HEIGHT - page.body_top - BODY_BOTTOM, BODY_SIZES[-1] * LEADING)
        assert _height(page.paragraphs, page.body_size) <= room or page.body_size == BODY_SIZES[-1]


def test_letters_get_smaller_before_a_page_goes_on():
    """A few points are large, more are smaller, and too many continue on a page with the same title."""
    sizes = [lay_out(Slide("t", ("point",) * count), wide_measure) for count in (3, 12, 60)]
    assert [pages[0].body_size for pages in sizes[:2]] == [24.0, 16.0]
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


def test_points_name_their_sources():
    """Each source has one number, in the order of points, and stands at the foot of each page."""
    slide = Slide("t", ("one", "two", "three", "four"), "", ("a.md", None, "b.md", "a.md"))
    (page,) = lay_out(slide, wide_measure)
    assert [paragraph.text for paragraph in page.paragraphs] == ["one [1]", "two", "three [2]", "four [1]"]
    assert page.foot == ("[1] a.md   [2] b.md",)
    words = Slide("t", ("word " * 14 + "end",), "", ("a.md",))
    (lines,) = [
        one.lines for one in lay_out(words, lambda text, _: len(text) * (TEXT_WIDTH - INDENT) / 74)[0].paragraphs
    ]
    assert lines[-1] == "end [1]"
    many = Slide("t", ("p",) * 9, "", tuple(f"document {n} of the archive, a long heading of it" for n in range(9)))
    assert (len(lay_out(many, wide_measure)[0].foot), lay_out(many, wide_measure)[0].foot[-1][-1]) == (2, "…")


@pytest.mark.parametrize(
    ("header", "rows", "is_chart"),
    [
        (("k", "v (s)", "w (s)"), (("a", "1,000", "900"), ("b", "-2.5", "7")), True),
        (("k", "v"), (("a", "10%"), ("b", "20 %")), True),
        (("k", "v (s)", "w"), (("a", "1", "2"), ("b", "3", "4")), False),  # other units
        (("k", "v", "w"), (("a", "1", "200"), ("b", "3", "400")), False),  # one is a line beside the other
        (("k", "v"), (("a", "1"), ("b", "n/a")), False),
        (("k", "v"), (("a", "1"), ("a", "2")), False),
        (("k", "v"), (("a", "1"),), False),
        (("k", "v"), (("a", "0"), ("b", "0")), True),
    ],
)
def test_a_table_of_numbers_is_a_chart(header: tuple[str, ...], rows: tuple[tuple[str, ...], ...], is_chart: bool):
    """The numbers have one unit and order of magnitude, and the categories are distinct."""
    table = Table(header, rows)
    assert (chart_of(table) is not None) is is_chart
    first, last = lay_out(Slide("t", ("p",), "", (), table), wide_measure)
    assert (first.table, last.table, last.parts) == (None, table, 2)
    deck = Deck("d", (Slide("t", ("p",), "", ("a.md",), table),))
    shown = pptx.Presentation(io.BytesIO(write_pptx(deck))).slides[2].shapes
    assert any(shape.has_chart for shape in shown) is is_chart
    assert any(shape.has_table for shape in shown) is not is_chart
    words = pypdf.PdfReader(io.BytesIO(write_pdf(deck).content)).pages[2].extract_text()
    assert all(row[0] in words for row in rows)


def test_a_table_that_is_cut_says_so():
    """At the foot of its page, before its sources."""
    table = Table(("k", "v"), (("a", "1"), ("b", "2")), 30)
    first, last = lay_out(Slide("t", ("p",), "", ("a.md",), table), wide_measure)
    assert (first.foot, last.foot) == (("[1] a.md",), ("2 of 30 rows   [1] a.md",))


def test_letters_on_the_brand_colour_can_be_read():
    """Black or white, at a contrast of 4.5 at least (WCAG 2.2, 1.4.3)."""
    for colour in ("000000", "FFFFFF", "FFD400", "1F3A5F", "777777", "C8641B"):
        lighter, darker = sorted((luminance(colour), luminance(Theme(colour).on_primary)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + b"x" * 40, b"<svg/>"])
def test_what_is_no_picture_is_refused(content: bytes):
    """By both writers, with one error."""
    for write in (write_pptx, write_pdf):
        with pytest.raises(UnreadableLogoError, match="not a readable picture"):
            write(Deck("d", ()), Theme(logo=content))


@pytest.mark.parametrize(("width", "height", "shown"), [(40, 10, (104, 26)), (400, 20, (120, 6)), (10, 40, (6.5, 26))])
def test_a_logo_keeps_its_shape(width: int, height: int, shown: tuple[float, float]):
    """However wide or high, in the room that it has; in both formats alike."""
    assert logo_size(width, height) == shown
    logo = io.BytesIO()
    Image.new("RGB", (width, height), "#AA0000").save(logo, "PNG")
    theme = Theme(logo=logo.getvalue())
    (picture,) = (
        one
        for one in pptx.Presentation(io.BytesIO(write_pptx(Deck("d", ()), theme))).slides[0].shapes
        if one.name == "Logo"
    )
    assert (picture.width.pt, picture.height.pt, picture.top.pt) == (*shown, LOGO_TOP)
    drawn = pypdf.PdfReader(io.BytesIO(write_pdf(Deck("d", ()), theme).content)).pages[0].get_contents()
    assert drawn is not None
    assert f"{shown[0]:g} 0 0 {shown[1]:g} " in drawn.get_data().decode("latin-1")


def test_a_logo_can_be_seen_on_each_page():
    """A transparent one in the colour of the page has another colour behind it; one with a background of its own has none."""

    def plates(mode: str, colour: str, shape: str) -> tuple[str | None, ...]:
        logo, picture = io.BytesIO(), Image.new(mode, (40, 20), shape)
        picture.paste(colour, (5, 5, 25, 15))
        picture.save(logo, "PNG")
        return tuple(plate_of(logo.getvalue(), *colours) for colours in Theme(primary="7A1F5C").plates)

    assert plates("RGBA", "#7A1F5C", "#00000000") == ("FFFFFF", None)
    assert plates("RGBA", "#FFFFFF", "#00000000") == (None, "7A1F5C")
    assert plates("RGBA", "#30A070", "#00000000") == (None, None)
    assert plates("RGB", "#7A1F5C", "#FFFFFF") == (None, None)


def test_a_paragraph_from_right_to_left_begins_at_the_right():
    """In a PPTX by its direction, which programs know."""
    deck = Deck("שלום", (Slide("سلام", ("مرحبا (abc)", "left")),))
    first, second = pptx.Presentation(io.BytesIO(write_pptx(deck))).slides
    paragraphs = [*first.shapes.title.text_frame.paragraphs, *second.placeholders[1].text_frame.paragraphs]
    assert [one._p.pPr.get("rtl") for one in paragraphs] == ["1", "1", None]


DECK = (
    'Deck("A — Ж 日本 한국 😀", ('
    'Slide("One", ("a", "b" * 300), "notes", ("x.md",), Table(("k", "v"), (("a", "1"), ("b", "2")))), '
    'Slide("", ()), Slide("Two", ("c " * 900,) * 4)))'
)


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_same_deck_is_the_same_file(seed: str):
    """Whichever process writes it: its bytes are a function of the deck."""
    program = (
        "import hashlib, time; from highwater.streams.jobs.layout import Deck, Slide, Table\n"
        "from highwater.connectors.jobs.pdf_file import write_pdf\n"
        "from highwater.connectors.jobs.pptx_file import write_pptx\n"
        f"deck = {DECK}\n"
        "print(*(hashlib.sha256(content).hexdigest() for content in (write_pdf(deck).content, write_pptx(deck))))"
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
    assert told == [sha256(content).hexdigest() for content in (write_pdf(deck).content, write_pptx(deck))]


def test_a_table_fits_its_page():
    """Long cells take several lines, and the number of omitted rows is shown; in both files nothing is below the footer."""
    rows = tuple((f"row {n}", "a cell that says a whole sentence of some length " * 3) for n in range(12))
    slide = Slide("Rows", ("A point.",), table=Table(("name", "what it says"), rows, 20))
    page = lay_out(slide, wide_measure)[-1]
    grid = page.grid
    assert grid is not None
    assert sum(grid.heights) <= PAGE_HEIGHT - page.body_top - BODY_BOTTOM
    assert sum(grid.widths) == pytest.approx(TEXT_WIDTH)
    assert 2 < len(grid.cells) < 13
    assert page.foot[0].startswith(f"{len(grid.cells) - 1} of 20 rows")
    for row in grid.cells:
        for lines, width in zip(row, grid.widths, strict=True):
            assert len(lines) <= 3
            assert all(wide_measure(line, grid.size) <= width for line in lines)
    short = lay_out(
        Slide("Rows", ("A point.",), table=Table(("name", "is"), (("a", "x"), ("b", "y")), 2)), wide_measure
    )[-1]
    assert short.grid is not None
    assert (short.grid.size, len(short.grid.cells), short.foot) == (14.0, 3, ())
    drawn = pptx.Presentation(io.BytesIO(write_pptx(Deck("T", (slide,))))).slides[2].shapes
    table = next(shape for shape in drawn if shape.has_table)
    assert table.top + sum(one.height for one in table.table.rows) <= pptx.util.Pt(PAGE_HEIGHT - BODY_BOTTOM)


def test_a_column_has_room_for_its_longest_word():
    """While the others have more than theirs; a column of numbers is known as one."""
    purpose, link = "used for testing on several platforms " * 4, "https://a.example/a/page " * 4
    rows = tuple((name, purpose, link, purpose, purpose, "12") for name in ("Configuration", "AppVeyor"))
    grid = grid_of(Table(("Service", "Purpose", "Links", "Use", "More", "Runs"), rows), wide_measure, 400.0)
    assert wide_measure("Configuration", grid.size) <= grid.widths[0] - 2 * CELL_PADDING
    assert [row[0][0] for row in grid.cells] == ["Service", "Configuration", "AppVeyor"]
    assert sum(grid.widths) == pytest.approx(TEXT_WIDTH)
    assert grid.numbers == (False, False, False, False, False, True)
    crowded = grid_of(Table(("x" * 90, "y" * 90, "z" * 90), (("x" * 90, "y", "z"),)), wide_measure, 400.0)
    assert sum(crowded.widths) == pytest.approx(TEXT_WIDTH)
    assert min(crowded.widths) > 0
