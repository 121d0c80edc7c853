"""Decks as PDF.

Law: the same deck gives the same bytes, whoever writes it when, so that a file written twice is one blob. Letters of the Latin,
Greek, Cyrillic and Devanagari scripts are in the file as outlines; of East Asian ones it names fonts that readers bring along.
"""

from __future__ import annotations

import io
from functools import cache
from importlib.resources import as_file, files
from itertools import groupby

from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfbase.pdfmetrics import registerFont, stringWidth
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas

from highwater.streams.jobs.layout import (
    INDENT,
    LEADING,
    MARGIN,
    PAGE_HEIGHT,
    PAGE_WIDTH,
    POINT_GAP,
    TITLE_TOP,
    Deck,
    Page,
    Paragraph,
    lay_out,
    lay_out_title,
)

_FONT, _CHINESE, _KOREAN = "NotoSans", "STSong-Light", "HYSMyeongJo-Medium"
# Nearly black and grey on white: printed as it is.
_INK, _FAINT = (0.11, 0.13, 0.17), (0.45, 0.48, 0.53)
_FOOT_SIZE = 12.0
_BULLET = "•"
# What none of the fonts has is shown as this.
_UNKNOWN = "\ufffd"


def write_pdf(deck: Deck) -> bytes:
    """The file of a deck: its title, then its slides."""
    _known()
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(PAGE_WIDTH, PAGE_HEIGHT), invariant=1, pageCompression=1)
    first = lay_out_title(deck, _measure)
    canvas.setTitle(first.title)
    canvas.setAuthor("Highwater")
    canvas.setCreator("Highwater")
    _draw_title(canvas, first)
    pages = [page for slide in deck.slides for page in lay_out(slide, _measure)]
    for number, page in enumerate(pages, start=1):
        canvas.showPage()
        if page.part == 1:
            canvas.bookmarkPage(str(number))
            canvas.addOutlineEntry(page.title, str(number))
        _draw(canvas, page)
        canvas.setFillColorRGB(*_FAINT)
        _text(canvas, PAGE_WIDTH - MARGIN, PAGE_HEIGHT - 24, f"{number} / {len(pages)}", _FOOT_SIZE, is_right=True)
    canvas.showPage()
    canvas.save()
    return out.getvalue()


def _draw_title(canvas: Canvas, page: Page) -> None:
    canvas.setFillColorRGB(*_INK)
    height = len(page.title_lines) * page.title_size * LEADING
    _lines(canvas, MARGIN, (PAGE_HEIGHT - height) / 2, page.title_lines, page.title_size)


def _draw(canvas: Canvas, page: Page) -> None:
    canvas.setFillColorRGB(*_INK)
    _lines(canvas, MARGIN, TITLE_TOP, page.title_lines, page.title_size)
    if page.parts > 1:
        canvas.setFillColorRGB(*_FAINT)
        _text(canvas, MARGIN, PAGE_HEIGHT - 24, f"{page.part}/{page.parts}", _FOOT_SIZE)
        canvas.setFillColorRGB(*_INK)
    top = page.body_top
    for paragraph in page.paragraphs:
        top = _draw_paragraph(canvas, paragraph, top, page.body_size)


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
