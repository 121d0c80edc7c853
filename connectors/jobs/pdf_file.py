"""Decks as PDF.

Law: the same deck gives the same bytes, whoever writes it when, so that a file written twice is one blob. Letters of the Latin,
Greek, Cyrillic and Devanagari scripts are in the file as outlines; of East Asian ones it names fonts that readers bring along.
"""

from __future__ import annotations

import io
from functools import cache
from importlib.resources import as_file, files
from itertools import groupby

from reportlab.lib.utils import ImageReader
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfbase.pdfmetrics import registerFont, stringWidth
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas

from highwater.connectors.jobs.pictures import check_logo
from highwater.streams.jobs.layout import (
    BAND_WIDTH,
    BODY_BOTTOM,
    FOOT_SIZE,
    FOOT_TOP,
    INDENT,
    LEADING,
    LOGO_HEIGHT,
    LOGO_WIDTH_MAX,
    MARGIN,
    NUMBER_SIZE,
    NUMBER_TOP,
    PAGE_HEIGHT,
    PAGE_WIDTH,
    POINT_GAP,
    TEXT_WIDTH,
    TITLE_TOP,
    Chart,
    Deck,
    Page,
    Paragraph,
    Table,
    Theme,
    chart_of,
    lay_out,
    lay_out_title,
    plain,
)

_FONT, _CHINESE, _KOREAN = "NotoSans", "STSong-Light", "HYSMyeongJo-Medium"
# Nearly black and grey on white: printed as it is.
_INK, _FAINT, _RULE = "1C2129", "737A85", "D5D9DF"
_BULLET = "•"
# What none of the fonts has is shown as this.
_UNKNOWN = "\ufffd"
_TABLE_SIZE = 14.0


def write_pdf(deck: Deck, theme: Theme = Theme()) -> bytes:  # noqa: B008 (it cannot be changed)
    """The file of a deck: its title, then its slides.

    Raises:
        UnreadableLogoError: the logo is no picture.
    """
    _known()
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(PAGE_WIDTH, PAGE_HEIGHT), invariant=1, pageCompression=1)
    logo = _logo(theme)
    first = lay_out_title(deck, _measure)
    canvas.setTitle(first.title)
    canvas.setAuthor("Highwater")
    canvas.setCreator("Highwater")
    _draw_title(canvas, first, theme)
    _draw_logo(canvas, logo)
    pages = [page for slide in deck.slides for page in lay_out(slide, _measure)]
    for number, page in enumerate(pages, start=1):
        canvas.showPage()
        if page.part == 1:
            canvas.bookmarkPage(str(number))
            canvas.addOutlineEntry(page.title, str(number))
        _draw(canvas, page, theme)
        _draw_logo(canvas, logo)
        _fill(canvas, _FAINT)
        _text(canvas, PAGE_WIDTH - MARGIN, NUMBER_TOP + NUMBER_SIZE, str(number + 1), NUMBER_SIZE, is_right=True)
    canvas.showPage()
    canvas.save()
    return out.getvalue()


def _fill(canvas: Canvas, colour: str) -> None:
    canvas.setFillColorRGB(*(int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)))


def _box(canvas: Canvas, left: float, top: float, width: float, height: float, colour: str) -> None:
    """A filled rectangle; places from the top left."""
    _fill(canvas, colour)
    canvas.rect(left, PAGE_HEIGHT - top - height, width, height, stroke=0, fill=1)


def _logo(theme: Theme) -> ImageReader | None:
    if theme.logo is None:
        return None
    check_logo(theme.logo)
    return ImageReader(io.BytesIO(theme.logo))


def _draw_logo(canvas: Canvas, logo: ImageReader | None) -> None:
    if logo is None:
        return
    width, height = logo.getSize()
    shown = min(LOGO_WIDTH_MAX, LOGO_HEIGHT * width / height)
    left, base = PAGE_WIDTH - MARGIN - shown, PAGE_HEIGHT - 12 - LOGO_HEIGHT
    canvas.drawImage(logo, left, base, shown, LOGO_HEIGHT, mask="auto", preserveAspectRatio=True)


def _draw_title(canvas: Canvas, page: Page, theme: Theme) -> None:
    _box(canvas, 0, 0, PAGE_WIDTH, PAGE_HEIGHT, theme.primary)
    _box(canvas, 0, 0, BAND_WIDTH, PAGE_HEIGHT, theme.accent)
    _fill(canvas, theme.on_primary)
    height = len(page.title_lines) * page.title_size * LEADING
    _lines(canvas, MARGIN, (PAGE_HEIGHT - height) / 2, page.title_lines, page.title_size)


def _draw(canvas: Canvas, page: Page, theme: Theme) -> None:
    _box(canvas, 0, 0, BAND_WIDTH, PAGE_HEIGHT, theme.accent)
    _fill(canvas, theme.primary)
    _lines(canvas, MARGIN, TITLE_TOP, page.title_lines, page.title_size)
    _fill(canvas, _FAINT)
    if page.parts > 1:
        _text(
            canvas,
            PAGE_WIDTH - MARGIN - 40,
            NUMBER_TOP + NUMBER_SIZE,
            f"{page.part}/{page.parts}",
            FOOT_SIZE,
            is_right=True,
        )
    _lines(canvas, MARGIN, FOOT_TOP, page.foot, FOOT_SIZE)
    _fill(canvas, _INK)
    top = page.body_top
    for paragraph in page.paragraphs:
        top = _draw_paragraph(canvas, paragraph, top, page.body_size)
    if page.table is not None:
        _draw_table(canvas, page.table, top, PAGE_HEIGHT - BODY_BOTTOM - top, theme)


def _draw_table(canvas: Canvas, table: Table, top: float, height: float, theme: Theme) -> None:
    """A chart where the table is numbers by category, else the table."""
    chart = chart_of(table)
    if chart is not None:
        _draw_chart(canvas, chart, top, height, theme)
        return
    rows = (table.header, *table.rows)
    row_height = min(height / len(rows), 2.4 * _TABLE_SIZE)
    size = min(_TABLE_SIZE, row_height / 1.5)
    wants = [max(_measure(row[place], size) for row in rows) + 12 for place in range(len(table.header))]
    share = TEXT_WIDTH / sum(wants)
    for number, row in enumerate(rows):
        if number == 0:
            _box(canvas, MARGIN, top, TEXT_WIDTH, row_height, theme.primary)
        left = MARGIN
        for place, cell in enumerate(row):
            width = wants[place] * share
            _fill(canvas, _INK if number else theme.on_primary)
            _text(canvas, left + 6, top + (row_height + size) / 2 - 2, _short(cell, size, width - 12), size)
            left += width
        top += row_height
        _box(canvas, MARGIN, top, TEXT_WIDTH, 0.6, _RULE)


def _draw_chart(canvas: Canvas, chart: Chart, top: float, height: float, theme: Theme) -> None:
    """Columns by category, each with its number."""
    colours = (theme.primary, theme.accent, "7A8CA3", "B9A13C")
    names = [name for name, _ in chart.series]
    left = MARGIN
    for name, colour in zip(names, colours, strict=False):  # what the colours mean
        _box(canvas, left, top, 10, 10, colour)
        _fill(canvas, _INK)
        _text(canvas, left + 14, top + 10, plain(name), _TABLE_SIZE)
        left += 34 + _measure(plain(name), _TABLE_SIZE)
    base, room = top + height - 24, height - 24 - 44
    numbers = [number for _, values in chart.series for number in values]
    highest, lowest = max(0.0, *numbers), min(0.0, *numbers)
    scale = room / ((highest - lowest) or 1.0)
    zero = base + lowest * scale
    slot = TEXT_WIDTH / len(chart.categories)
    width = slot * 0.7 / len(chart.series)
    for place, category in enumerate(chart.categories):
        left = MARGIN + slot * (place + 0.15)
        for number, (_, values) in enumerate(chart.series):
            value = values[place]
            tall = abs(value) * scale
            _box(canvas, left, zero - tall if value > 0 else zero, width - 2, tall, colours[number])
            _fill(canvas, _INK)
            label = _short(f"{value:,g}" if value % 1 else f"{value:,.0f}", FOOT_SIZE, width)
            _text(
                canvas,
                left + (width - _measure(label, FOOT_SIZE)) / 2,
                zero - max(0.0, value) * scale - 4,
                label,
                FOOT_SIZE,
            )
            left += width
        name = _short(plain(category), FOOT_SIZE + 2, slot - 4)
        middle = MARGIN + slot * (place + 0.5) - _measure(name, FOOT_SIZE + 2) / 2
        _text(canvas, middle, top + height - 6, name, FOOT_SIZE + 2)
    _box(canvas, MARGIN, zero, TEXT_WIDTH, 0.6, _FAINT)


def _short(text: str, size: float, width: float) -> str:
    """A text in one line of a width, cut where it is longer."""
    text = plain(text)
    if _measure(text, size) <= width:
        return text
    while text and _measure(text + "\u2026", size) > width:
        text = text[:-1]
    return text + "\u2026" if text else ""


def _draw_paragraph(canvas: Canvas, paragraph: Paragraph, top: float, size: float) -> float:
    if not paragraph.is_begun:
        _text(canvas, MARGIN, top + size, _BULLET, size)
    _lines(canvas, MARGIN + INDENT, top, paragraph.lines, size)
    return top + (len(paragraph.lines) + POINT_GAP) * size * LEADING


def _lines(canvas: Canvas, left: float, top: float, lines: tuple[str, ...], size: float) -> None:
    for number, line in enumerate(lines):
        _text(canvas, left, top + number * size * LEADING + size, line.rstrip(), size)


def _text(canvas: Canvas, left: float, base: float, text: str, size: float, *, is_right: bool = False) -> None:
    """A line at a place from the top left, in runs of one font each."""
    line = canvas.beginText(left - (_measure(text, size) if is_right else 0), PAGE_HEIGHT - base)
    for font, run in _runs(text):
        line.setFont(font, size)
        line.textOut(run)
    canvas.drawText(line)


def _measure(text: str, size: float) -> float:
    return float(sum(stringWidth(run, font, size) for font, run in _runs(text)))


def _runs(text: str) -> list[tuple[str, str]]:
    chosen = [_chosen(letter) for letter in text]
    return [(font, "".join(letter for _, letter in run)) for font, run in groupby(chosen, key=lambda pair: pair[0])]


@cache
def _chosen(letter: str) -> tuple[str, str]:
    """The font that has a letter, and the letter; another one stands for what none has."""
    number = ord(letter)
    if number in _known():
        return _FONT, letter
    if 0x1100 <= number <= 0x11FF or 0x3130 <= number <= 0x318F or 0xAC00 <= number <= 0xD7AF:
        return _KOREAN, letter
    if number <= 0xFFFF:
        return _CHINESE, letter
    return _FONT, _UNKNOWN


@cache
def _known() -> frozenset[int]:
    """The letters that have outlines; the fonts are read once a process."""
    with as_file(files("fontpkg_noto_sans") / "files" / "NotoSans[wdth,wght].ttf") as path:
        font = TTFont(_FONT, str(path))
    registerFont(font)
    for name in (_CHINESE, _KOREAN):
        registerFont(UnicodeCIDFont(name))
    return frozenset(font.face.charToGlyph)
