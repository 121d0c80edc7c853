"""Decks as PDF.

Invariant: the same deck always gives the same bytes, so that a file written twice is one blob. All letters are embedded
in the file (`pdf_text.py`); a paragraph that runs from right to left begins at the right.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

from highwater.connectors.jobs.fonts import language_of
from highwater.connectors.jobs.pdf_text import TextWriter
from highwater.connectors.jobs.pictures import check_logo, plate_of
from highwater.streams.jobs.bidi import base_level, levels_of
from highwater.streams.jobs.layout import (
    BAND_WIDTH,
    BODY_BOTTOM,
    CELL_PADDING,
    FAINT,
    FOOT_SIZE,
    FOOT_TOP,
    INDENT,
    INK,
    LEADING,
    LOGO_PLATE_EDGE,
    LOGO_TOP,
    MARGIN,
    NUMBER_SIZE,
    NUMBER_TOP,
    PAGE_HEIGHT,
    PAGE_WIDTH,
    POINT_GAP,
    TABLE_SIZE,
    TEXT_WIDTH,
    TITLE_TOP,
    Chart,
    Deck,
    Grid,
    Page,
    Paragraph,
    Table,
    Theme,
    Written,
    chart_of,
    lay_out,
    lay_out_title,
    logo_size,
    plain,
)
from highwater.streams.jobs.letters import letters_of

_RULE = "D5D9DF"
_BULLET = "\u2022"


def write_pdf(deck: Deck, theme: Theme = Theme()) -> Written:  # noqa: B008 (it cannot be changed)
    """Return the file of a deck: its title, then its slides; symbols that no font has are dropped.

    Raises:
        UnreadableLogoError: the logo is not a picture.
        MissingFontError: no font has one of its letters.
    """
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(PAGE_WIDTH, PAGE_HEIGHT), invariant=1, pageCompression=1)
    texts = TextWriter(canvas, language_of(_texts(deck)))
    drawn = _Pages(canvas, texts, theme)
    first = lay_out_title(deck, texts.measure)
    canvas.setTitle(first.title)
    canvas.setAuthor("Highwater")
    canvas.setCreator("Highwater")
    drawn.add_title(first)
    pages = [page for slide in deck.slides for page in lay_out(slide, texts.measure)]
    for number, page in enumerate(pages, start=1):
        canvas.showPage()
        if page.part == 1:
            canvas.bookmarkPage(str(number))
            canvas.addOutlineEntry(page.title, str(number))
        drawn.add(page, number + 1)
    canvas.showPage()
    canvas.save()
    return Written(out.getvalue(), texts.left_out)


def _texts(deck: Deck) -> list[str]:
    return [deck.title, *(text for slide in deck.slides for text in (slide.title, *slide.points))]


class _Pages:
    """Draws the pages on a canvas; places in points from the top left."""

    def __init__(self, canvas: Canvas, texts: TextWriter, theme: Theme) -> None:
        self._canvas = canvas
        self._texts = texts
        self._theme = theme
        self._logo = None
        if theme.logo is not None:
            size = logo_size(*check_logo(theme.logo))
            self._logo = ImageReader(io.BytesIO(theme.logo)), *size
            self._plates = tuple(plate_of(theme.logo, *colours) for colours in theme.plates)

    def add_title(self, page: Page) -> None:
        """Add the first page."""
        self._box(0, 0, PAGE_WIDTH, PAGE_HEIGHT, self._theme.primary)
        self._box(0, 0, BAND_WIDTH, PAGE_HEIGHT, self._theme.accent)
        self._fill(self._theme.on_primary)
        height = len(page.title_lines) * page.title_size * LEADING
        self._lines((PAGE_HEIGHT - height) / 2, page.title_lines, page.title_size)
        self._add_logo(is_title=True)

    def add(self, page: Page, number: int) -> None:
        """Add a page of a slide; `number` of all pages."""
        self._box(0, 0, BAND_WIDTH, PAGE_HEIGHT, self._theme.accent)
        self._fill(self._theme.primary)
        self._lines(TITLE_TOP, page.title_lines, page.title_size)
        self._fill(INK)
        top = page.body_top
        for paragraph in page.paragraphs:
            top = self._add_paragraph(paragraph, top, page.body_size)
        if page.table is not None:
            self._add_table(page, page.table, top, PAGE_HEIGHT - BODY_BOTTOM - top)
        self._add_foot(page, number)
        self._add_logo(is_title=False)

    def _add_foot(self, page: Page, number: int) -> None:
        """Add sources and numbers: drawn after the text, so that readers of the file find them there."""
        self._fill(FAINT)
        base, right = NUMBER_TOP + NUMBER_SIZE, PAGE_WIDTH - MARGIN
        if page.parts > 1:
            self._text_before(right - 40, base, f"{page.part}/{page.parts}", FOOT_SIZE)
        self._text_before(right, base, str(number), NUMBER_SIZE)
        self._lines(FOOT_TOP, page.foot, FOOT_SIZE)

    def _add_logo(self, *, is_title: bool) -> None:
        if self._logo is not None:
            logo, width, height = self._logo
            left, base = PAGE_WIDTH - MARGIN - width, PAGE_HEIGHT - LOGO_TOP - height
            plate = self._plates[0 if is_title else 1]
            if plate is not None:
                edge = LOGO_PLATE_EDGE
                self._box(left - edge, LOGO_TOP - edge, width + 2 * edge, height + 2 * edge, plate)
            self._canvas.drawImage(logo, left, base, width, height, mask="auto")

    def _add_paragraph(self, paragraph: Paragraph, top: float, size: float) -> float:
        """Add a point at a place; return where it ends."""
        if not paragraph.is_begun:
            if base_level(paragraph.text):
                self._text_before(PAGE_WIDTH - MARGIN, top + size, _BULLET, size)
            else:
                self._text(MARGIN, top + size, _BULLET, size)
        self._lines(top, paragraph.lines, size, indent=INDENT)
        return top + (len(paragraph.lines) + POINT_GAP) * size * LEADING

    def _add_table(self, page: Page, table: Table, top: float, height: float) -> None:
        """Add a chart if the table is numbers by category, else the table."""
        chart = chart_of(table)
        if chart is not None:
            self._add_chart(chart, top, height)
        elif page.grid is not None:
            self._add_grid(page.grid, top)

    def _add_grid(self, grid: Grid, top: float) -> None:
        numbers = grid.numbers
        for number, (row, row_height) in enumerate(zip(grid.cells, grid.heights, strict=True)):
            if number == 0:
                self._box(MARGIN, top, TEXT_WIDTH, row_height, self._theme.primary)
            left = MARGIN
            for lines, width, is_number in zip(row, grid.widths, numbers, strict=True):
                self._fill(INK if number else self._theme.on_primary)
                for place, line in enumerate(lines):
                    base = top + CELL_PADDING / 2 + (place + 1) * grid.size * LEADING - grid.size * (LEADING - 1)
                    if is_number or base_level("".join(lines)):
                        self._text_before(left + width - CELL_PADDING, base, line, grid.size)
                    else:
                        self._text(left + CELL_PADDING, base, line, grid.size)
                left += width
            top += row_height
            self._box(MARGIN, top, TEXT_WIDTH, 0.6, _RULE)

    def _add_chart(self, chart: Chart, top: float, height: float) -> None:
        """Add columns by category, each with its number."""
        colours = (self._theme.primary, self._theme.accent, "7A8CA3", "B9A13C")
        left = MARGIN
        for (name, _), colour in zip(chart.series, colours, strict=False):  # the legend of the colours
            self._box(left, top, 10, 10, colour)
            self._fill(INK)
            self._text(left + 14, top + 10, plain(name), TABLE_SIZE)
            left += 34 + self._measure(plain(name), TABLE_SIZE)
        numbers = [number for _, values in chart.series for number in values]
        highest, lowest = max(0.0, *numbers), min(0.0, *numbers)
        scale = (height - 24 - 44) / ((highest - lowest) or 1.0)
        zero = top + height - 24 + lowest * scale
        slot = TEXT_WIDTH / len(chart.categories)
        width = slot * 0.7 / len(chart.series)
        for place, category in enumerate(chart.categories):
            left = MARGIN + slot * (place + 0.15)
            for (_, values), colour in zip(chart.series, colours, strict=False):
                self._add_column(left, zero, width, values[place], scale, colour)
                left += width
            name = self._short(category, FOOT_SIZE + 2, slot - 4)
            self._text_around(MARGIN + slot * (place + 0.5), top + height - 6, name, FOOT_SIZE + 2)
        self._box(MARGIN, zero, TEXT_WIDTH, 0.6, FAINT)

    def _add_column(self, left: float, zero: float, width: float, value: float, scale: float, colour: str) -> None:
        tall = abs(value) * scale
        self._box(left, zero - tall if value > 0 else zero, width - 2, tall, colour)
        self._fill(INK)
        label = self._short(f"{value:,g}" if value % 1 else f"{value:,.0f}", FOOT_SIZE, width)
        self._text_around(left + width / 2, zero - max(0.0, value) * scale - 4, label, FOOT_SIZE)

    def _short(self, text: str, size: float, width: float) -> str:
        """Return a text in one line of a width, cut if it is longer."""
        text = plain(text)
        if self._measure(text, size) <= width:
            return text
        letters = list(letters_of(text))
        while letters and self._measure("".join(letters) + "\u2026", size) > width:
            letters.pop()
        return "".join(letters) + "\u2026" if letters else ""

    def _lines(self, top: float, lines: Sequence[str], size: float, *, indent: float = 0.0) -> None:
        """Add the lines of a paragraph at the margin where it begins."""
        whole = "".join(lines)
        direction = base_level(whole)
        levels = levels_of(whole, direction)
        start = 0
        for number, line in enumerate(lines):
            shown = line.rstrip()
            left = PAGE_WIDTH - MARGIN - indent - self._measure(shown, size) if direction else MARGIN + indent
            base = PAGE_HEIGHT - (top + number * size * LEADING + size)
            self._texts.part(left, base, shown, levels[start : start + len(shown)], direction, size)
            start += len(line)

    def _text(self, left: float, base: float, text: str, size: float) -> None:
        self._texts.line(left, PAGE_HEIGHT - base, text, size)

    def _text_before(self, right: float, base: float, text: str, size: float) -> None:
        self._text(right - self._measure(text, size), base, text, size)

    def _text_around(self, middle: float, base: float, text: str, size: float) -> None:
        self._text(middle - self._measure(text, size) / 2, base, text, size)

    def _measure(self, text: str, size: float) -> float:
        return self._texts.measure(text, size)

    def _fill(self, colour: str) -> None:
        self._canvas.setFillColorRGB(*(int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)))

    def _box(self, left: float, top: float, width: float, height: float, colour: str) -> None:
        """Add a filled rectangle."""
        self._fill(colour)
        self._canvas.rect(left, PAGE_HEIGHT - top - height, width, height, stroke=0, fill=1)
