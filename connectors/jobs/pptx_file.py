"""Decks as PPTX.

Law: the same deck gives the same bytes, whoever writes it when, so that a file written twice is one blob: the entries of its
archive have one date, and so has the deck. Texts stand in the placeholders of titles and bodies, where programs look for them.
"""

from __future__ import annotations

import io
import zipfile
from datetime import datetime
from typing import Any

from pptx import Presentation
from pptx.enum.text import MSO_AUTO_SIZE
from pptx.util import Pt

from highwater.streams.jobs.layout import (
    BODY_BOTTOM,
    MARGIN,
    PAGE_HEIGHT,
    PAGE_WIDTH,
    POINT_GAP,
    TEXT_WIDTH,
    TITLE_TOP,
    Deck,
    Page,
    lay_out,
    lay_out_title,
    plain,
    wide_measure,
)

# The earliest that an archive can name, for every deck: when it was made is told by the job.
_DATE = (1980, 1, 1, 0, 0, 0)
# The layouts of the library's template, by place.
_ONLY_TITLE, _TITLE_AND_BODY = 5, 1


def write_pptx(deck: Deck) -> bytes:
    """The file of a deck: its title, then its slides."""
    file = Presentation()
    file.slide_width, file.slide_height = Pt(PAGE_WIDTH), Pt(PAGE_HEIGHT)
    first = lay_out_title(deck, wide_measure)
    _describe(file, first.title)
    _add_title(file, first)
    for slide in deck.slides:
        for page in lay_out(slide, wide_measure):
            _add(file, page, plain(slide.notes) if page.part == 1 else "")
    out = io.BytesIO()
    file.save(out)
    return _dateless(out)


def _describe(file: Any, title: str) -> None:
    about = file.core_properties
    about.title, about.author, about.last_modified_by, about.revision = title[:255], "Highwater", "Highwater", 1
    about.created = about.modified = datetime(*_DATE)  # noqa: DTZ001 (the library takes naive times for UTC)


def _add_title(file: Any, page: Page) -> None:
    shape = file.slides.add_slide(file.slide_layouts[_ONLY_TITLE]).shapes.title
    _place(shape, TITLE_TOP, PAGE_HEIGHT - 2 * TITLE_TOP)
    _write(shape.text_frame, [page.title], page.title_size)


def _add(file: Any, page: Page, notes: str) -> None:
    slide = file.slides.add_slide(file.slide_layouts[_TITLE_AND_BODY])
    title, body = slide.shapes.title, slide.placeholders[1]
    _place(title, TITLE_TOP, page.body_top - TITLE_TOP)
    _write(title.text_frame, [page.shown_title], page.title_size)
    if page.paragraphs:
        _place(body, page.body_top, max(page.body_size, PAGE_HEIGHT - page.body_top - BODY_BOTTOM))
        _write(body.text_frame, [paragraph.text for paragraph in page.paragraphs], page.body_size)
    else:
        body.element.getparent().remove(body.element)  # an empty one asks for a text on the screen
    if notes:
        slide.notes_slide.notes_text_frame.text = notes


def _place(shape: Any, top: float, height: float) -> None:
    shape.left, shape.top, shape.width, shape.height = Pt(MARGIN), Pt(top), Pt(TEXT_WIDTH), Pt(height)


def _write(frame: Any, texts: list[str], size: float) -> None:
    frame.word_wrap = True
    frame.auto_size = MSO_AUTO_SIZE.NONE
    for number, text in enumerate(texts):
        paragraph = frame.paragraphs[0] if number == 0 else frame.add_paragraph()
        paragraph.text = text
        paragraph.font.size = Pt(size)
        if number:
            paragraph.space_before = Pt(size * POINT_GAP)


def _dateless(archive: io.BytesIO) -> bytes:
    """The archive with one date for all its entries."""
    out = io.BytesIO()
    with zipfile.ZipFile(archive) as dated, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as written:
        for entry in dated.infolist():
            info = zipfile.ZipInfo(entry.filename, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o600 << 16
            written.writestr(info, dated.read(entry))
    return out.getvalue()
