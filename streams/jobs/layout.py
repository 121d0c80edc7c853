"""How a deck is laid out on pages, whatever writes them: sizes of letters, lines, and pages that go on.

Law: no title or point of a deck is lost. Letters get smaller down to what can be read from the back of a room; what does not fit
then goes on on another page of the same title. The measure of letters is an argument, so that each writer lays out with its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

# (text, size) -> width, both in points of 1/72 inch.
Measure = Callable[[str, float], float]

# 13.33 by 7.5 inches, 16:9, in points: the page of every writer.
PAGE_WIDTH, PAGE_HEIGHT = 960.0, 540.0
MARGIN = 54.0
TEXT_WIDTH = PAGE_WIDTH - 2 * MARGIN
# A point begins after its bullet.
INDENT = 24.0
TITLE_TOP, BODY_GAP, BODY_BOTTOM = 40.0, 18.0, 48.0
# From the back of a room 14 points are read, less is not; a title stands out from 20 on.
TITLE_SIZES = (32.0, 28.0, 24.0, 20.0)
BODY_SIZES = (24.0, 20.0, 18.0, 16.0, 14.0)
# A title takes two lines before its letters get smaller.
TITLE_LINES = 2
LEADING = 1.25
POINT_GAP = 0.5  # of a line, between points

_WORD = re.compile(r"\S+\s*")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Slide:
    """A slide as it was made; `notes` are what its speaker says, for formats that have a place for them."""

    title: str
    points: tuple[str, ...] = ()
    notes: str = ""


@dataclass(frozen=True, slots=True)
class Deck:
    """A deck as it was made; its slides in order."""

    title: str
    slides: tuple[Slide, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A point, or what goes on of one, in lines with the spaces that end them. `is_begun`: its bullet stands on a page before."""

    lines: tuple[str, ...]
    is_begun: bool = False

    @property
    def text(self) -> str:
        """What stands in its lines."""
        return "".join(self.lines).rstrip()


@dataclass(frozen=True, slots=True)
class Page:
    """A page; sizes in points. `part` of `parts`: a slide on several pages."""

    title: str
    title_lines: tuple[str, ...]
    title_size: float
    paragraphs: tuple[Paragraph, ...] = ()
    body_size: float = BODY_SIZES[0]
    part: int = 1
    parts: int = 1

    @property
    def body_top(self) -> float:
        """Where its points begin, from the top of the page."""
        return TITLE_TOP + len(self.title_lines) * self.title_size * LEADING + BODY_GAP

    @property
    def shown_title(self) -> str:
        """Its title; of a slide on several pages with the number of the page."""
        return self.title if self.parts == 1 else f"{self.title} ({self.part}/{self.parts})"


def plain(text: str) -> str:
    """A text in one line: no file format takes control characters, and line breaks are the layout's."""
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def wide_measure(text: str, size: float) -> float:
    """About as wide as the commonest letters make a text, erring on the wide side; for writers that know no letters."""
    return size * sum(1.0 if ord(letter) >= 0x1100 else 0.56 for letter in text)


def lay_out_title(deck: Deck, measure: Measure) -> Page:
    """The first page."""
    title = plain(deck.title)
    size, lines = _title_lines(title, measure)
    return Page(title, lines, size)


def lay_out(slide: Slide, measure: Measure) -> list[Page]:
    """The pages of a slide, at least one."""
    title = plain(slide.title)
    title_size, title_lines = _title_lines(title, measure)
    empty = Page(title, title_lines, title_size)
    # However long its title, a page has room for a line.
    height = max(PAGE_HEIGHT - empty.body_top - BODY_BOTTOM, BODY_SIZES[-1] * LEADING)
    points = [plain(point) for point in slide.points]
    bodies, size = _fit([point for point in points if point], measure, height)
    return [
        Page(title, title_lines, title_size, body, size, part, len(bodies)) for part, body in enumerate(bodies, start=1)
    ]


def _title_lines(title: str, measure: Measure) -> tuple[float, tuple[str, ...]]:
    for size in TITLE_SIZES:
        lines = tuple(wrap(title, size, TEXT_WIDTH, measure))
        if len(lines) <= TITLE_LINES:
            break
    return size, lines


def _fit(points: Sequence[str], measure: Measure, height: float) -> tuple[list[tuple[Paragraph, ...]], float]:
    for size in BODY_SIZES:
        paragraphs = [Paragraph(tuple(wrap(point, size, TEXT_WIDTH - INDENT, measure))) for point in points]
        if _height(paragraphs, size) <= height:
            return [tuple(paragraphs)], size
    return list(_pages(paragraphs, size, height)), size


def _height(paragraphs: Sequence[Paragraph], size: float) -> float:
    lines = sum(len(paragraph.lines) for paragraph in paragraphs)
    return (lines + POINT_GAP * max(0, len(paragraphs) - 1)) * size * LEADING


def _pages(paragraphs: Sequence[Paragraph], size: float, height: float) -> Iterator[tuple[Paragraph, ...]]:
    """Paragraphs on as many pages as they need; one is broken only if it fills more than a page by itself."""
    room = max(1, int(height / (size * LEADING)))
    page: list[Paragraph] = []
    for paragraph in (part for whole in paragraphs for part in _parts(whole, room)):
        if page and _height([*page, paragraph], size) > height:
            yield tuple(page)
            page = []
        page.append(paragraph)
    yield tuple(page)


def _parts(paragraph: Paragraph, lines_max: int) -> Iterator[Paragraph]:
    for first in range(0, len(paragraph.lines), lines_max):
        yield Paragraph(paragraph.lines[first : first + lines_max], is_begun=first > 0)


def wrap(text: str, size: float, width: float, measure: Measure) -> list[str]:
    """A text of one line in lines that fit a width, each with the spaces that end it; a word that is wider is broken."""
    lines = [""]
    for word in _WORD.findall(text):
        if lines[-1] and measure((lines[-1] + word).rstrip(), size) > width:
            lines.append("")
        if not lines[-1] and measure(word.rstrip(), size) > width:
            lines[-1:] = _broken(word, size, width, measure)
        else:
            lines[-1] += word
    return lines if lines[0] else []


def _broken(word: str, size: float, width: float, measure: Measure) -> list[str]:
    """A word in parts that fit, at least a letter each."""
    parts = [""]
    for letter in word:
        if parts[-1] and measure((parts[-1] + letter).rstrip(), size) > width:
            parts.append("")
        parts[-1] += letter
    return parts
