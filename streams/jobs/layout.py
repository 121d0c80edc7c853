"""The layout of a deck on pages, for every writer: font sizes, lines, and continuation pages.

Invariant: no title or point of a deck is lost. Letters shrink to the smallest size that can be read from the back of a
room; the rest continues on another page with the same title. A table has a page of its own, as a chart if its columns
are numbers. The measure of letters is an argument, so each writer measures with its own fonts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from highwater.schemas.errors import HighwaterError
from highwater.streams.jobs.letters import letters_of, pieces_of

# Pixels of a logo: a picture of a few bytes may unpack to gigabytes.
LOGO_PIXELS_MAX = 16_000_000
# The mark of a source after a point.
_MARK = re.compile(r"\[\d+\]")
# (text, size) -> width, both in points of 1/72 inch.
Measure = Callable[[str, float], float]

# 13.33 by 7.5 inches, 16:9, in points: the page of every writer.
PAGE_WIDTH, PAGE_HEIGHT = 960.0, 540.0
MARGIN = 54.0
TEXT_WIDTH = PAGE_WIDTH - 2 * MARGIN
# The indent of a point after its bullet.
INDENT = 24.0
TITLE_TOP, BODY_GAP, BODY_BOTTOM = 40.0, 18.0, 62.0
# Sources take at most two small lines; all of them are in the notes.
FOOT_TOP, FOOT_SIZE, FOOT_LINES = PAGE_HEIGHT - 50.0, 9.0, 2
NUMBER_TOP, NUMBER_SIZE = PAGE_HEIGHT - 24.0, 12.0
TABLE_SIZE = 14.0
# A table that does not fit gets smaller letters, then loses its last rows; a cell has at most this many lines.
TABLE_SIZES, CELL_LINES_MAX = (TABLE_SIZE, 12.0, 11.0), 3
CELL_PADDING, COLUMN_WIDTH_MIN = 6.0, 60.0
# Nearly black and grey on white, for printing.
INK, FAINT = "1C2129", "737A85"
# A band in the accent colour at the left edge of each page, and the logo at the top right.
# Around a logo that has a colour behind it.
LOGO_PLATE_EDGE = 5.0
BAND_WIDTH, LOGO_HEIGHT, LOGO_WIDTH_MAX, LOGO_TOP = 10.0, 26.0, 120.0, 12.0
# 14 points are the smallest that can be read from the back of a room; a title stands out from 20 on.
TITLE_SIZES = (32.0, 28.0, 24.0, 20.0)
BODY_SIZES = (24.0, 20.0, 18.0, 16.0, 14.0)
# A title takes two lines before its letters shrink.
TITLE_LINES = 2
LEADING = 1.25
POINT_GAP = 0.5  # of a line, between points

# Control characters, surrogates, and private-use characters: none has a meaning outside the original document.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ue000-\uf8ff\ufffe\uffff\U000f0000-\U0010ffff]"
)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header, each of its length. `rows_total`: of the whole table if these are only its first rows; else 0."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    rows_total: int = 0


@dataclass(frozen=True, slots=True)
class Grid:
    """A table as it is drawn: font size, column widths, and for each row its height and the lines of its cells, the
    header first.
    """

    size: float
    widths: tuple[float, ...]
    heights: tuple[float, ...]
    cells: tuple[tuple[tuple[str, ...], ...], ...]

    @property
    def numbers(self) -> tuple[bool, ...]:
        """Return which columns are of numbers, which stand at their right edge."""
        return tuple(
            all(_number("".join(row[place])) is not None for row in self.cells[1:]) for place in range(len(self.widths))
        )


@dataclass(frozen=True, slots=True)
class Chart:
    """Numbers by category: each series has a name and one number per category."""

    categories: tuple[str, ...]
    series: tuple[tuple[str, tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True)
class Slide:
    """A slide as it was made; `notes` are the speaker's notes, for formats that support them.

    `sources`: the source of each point as it is shown; None, or a shorter list, if unknown.
    """

    title: str
    points: tuple[str, ...] = ()
    notes: str = ""
    sources: tuple[str | None, ...] = ()
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class Deck:
    """A deck as it was made; its slides in order."""

    title: str
    slides: tuple[Slide, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """The file of a deck, and the symbols missing from it because no font has them."""

    content: bytes
    left_out: frozenset[str] = frozenset()


class UnreadableLogoError(HighwaterError):
    """The logo is not a readable PNG or JPEG. Put another one."""


class MissingFontError(HighwaterError):
    """No font has a letter of the deck. Install one that has, or export the deck to PPTX."""


@dataclass(frozen=True, slots=True)
class Theme:
    """The look of a deck: two colours as `RRGGBB`, and a logo as PNG or JPEG. `brand_kit` of an export sets it."""

    primary: str = "1F3A5F"
    accent: str = "C8641B"
    logo: bytes | None = None

    @property
    def plates(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the colour of the title page and that of the others, each with colours for what cannot be seen on it."""
        return (self.primary, ("FFFFFF", "000000")), ("FFFFFF", (self.primary, "000000"))

    @property
    def on_primary(self) -> str:
        """Return black or white, whichever is more readable on the primary colour (WCAG 2.2, contrast ratio)."""
        return (
            "FFFFFF" if luminance(self.primary) < 0.179 else "000000"
        )  # the luminance at which both have the same contrast


def luminance(colour: str) -> float:
    """Return the relative luminance of `RRGGBB`, 0 to 1 (WCAG 2.2)."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4))
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A point or its continuation, in lines with their trailing spaces. `is_begun`: its bullet is on an earlier page."""

    lines: tuple[str, ...]
    is_begun: bool = False

    @property
    def text(self) -> str:
        """Return the text of its lines."""
        return "".join(self.lines).rstrip()


@dataclass(frozen=True, slots=True)
class Page:
    """A page; sizes in points. `part` of `parts`: for a slide on several pages."""

    title: str
    title_lines: tuple[str, ...]
    title_size: float
    paragraphs: tuple[Paragraph, ...] = ()
    body_size: float = BODY_SIZES[0]
    part: int = 1
    parts: int = 1
    foot: tuple[str, ...] = ()
    table: Table | None = None
    grid: Grid | None = None

    @property
    def body_top(self) -> float:
        """Return where its points begin, from the top of the page."""
        return TITLE_TOP + len(self.title_lines) * self.title_size * LEADING + BODY_GAP

    @property
    def shown_title(self) -> str:
        """Return its title, with the page number if the slide has several pages."""
        return self.title if self.parts == 1 else f"{self.title} ({self.part}/{self.parts})"


def plain(text: str) -> str:
    """Return a text in one line: no file format accepts control characters, and the layout breaks lines."""
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def wide_measure(text: str, size: float) -> float:
    """Estimate the width of a text from common letters, on the wide side; for writers without font metrics."""
    return size * sum(1.0 if ord(letter) >= 0x1100 else 0.56 for letter in text)


def lay_out_title(deck: Deck, measure: Measure) -> Page:
    """Return the first page."""
    title = plain(deck.title)
    size, lines = _title_lines(title, measure)
    return Page(title, lines, size)


def lay_out(slide: Slide, measure: Measure) -> list[Page]:
    """Return the pages of a slide, at least one; its table has one of its own after them."""
    title = plain(slide.title)
    title_size, title_lines = _title_lines(title, measure)
    sources = sources_of(slide)
    foot = _foot(sources, measure)
    empty = Page(title, title_lines, title_size, foot=foot)
    # However long its title, a page has room for a line.
    height = max(PAGE_HEIGHT - empty.body_top - BODY_BOTTOM, BODY_SIZES[-1] * LEADING)
    points = [plain(point) + _mark(slide, place, sources) for place, point in enumerate(slide.points) if plain(point)]
    bodies, size = _fit(points, measure, height)
    parts = len(bodies) + (slide.table is not None)
    pages = [
        replace(empty, paragraphs=body, body_size=size, part=part, parts=parts)
        for part, body in enumerate(bodies, start=1)
    ]
    if slide.table is None:
        return pages
    grid = None if chart_of(slide.table) is not None else grid_of(slide.table, measure, height)
    shown = len(slide.table.rows) if grid is None else len(grid.cells) - 1
    total = max(slide.table.rows_total, len(slide.table.rows))
    if total > shown:
        foot = _foot(sources, measure, f"{shown} of {total} rows   ")
    return [*pages, replace(empty, table=slide.table, grid=grid, part=parts, parts=parts, foot=foot)]


def grid_of(table: Table, measure: Measure, height: float) -> Grid:
    """Return a table in the largest letters in which all of it fits a height; in the smallest, with the first rows that fit."""
    rows = tuple(tuple(map(plain, row)) for row in (table.header, *table.rows))
    for size in TABLE_SIZES:
        widths = _widths(rows, size, measure)
        cells = tuple(
            tuple(_cell(cell, size, width - 2 * CELL_PADDING, measure) for cell, width in zip(row, widths, strict=True))
            for row in rows
        )
        heights = tuple(max(1, *map(len, row)) * size * LEADING + CELL_PADDING for row in cells)
        if sum(heights) <= height:
            return Grid(size, widths, heights, cells)
    count = max(2, sum(total <= height for total in accumulate(heights)))
    return Grid(size, widths, heights[:count], cells[:count])


def _widths(rows: Sequence[Sequence[str]], size: float, measure: Measure) -> tuple[float, ...]:
    """Return column widths that add up to the width of the text: by their longest cells, wide ones by the square root, but
    none narrower than its longest word while the others have room.
    """
    columns = list(zip(*rows, strict=True))
    wants = [max(measure(cell, size) for cell in column) + 2 * CELL_PADDING for column in columns]
    if sum(wants) > TEXT_WIDTH:
        shares = [max(COLUMN_WIDTH_MIN, min(want, (want * TEXT_WIDTH / 4) ** 0.5)) for want in wants]
        wants = [share * TEXT_WIDTH / sum(shares) for share in shares]
        words = [
            max((measure(word, size) for cell in column for word in cell.split()), default=0.0) for column in columns
        ]
        least = [min(word + 2 * CELL_PADDING, TEXT_WIDTH / len(words)) for word in words]
        lacking = sum(max(0.0, few - want) for few, want in zip(least, wants, strict=True))
        spare = sum(max(0.0, want - few) for few, want in zip(least, wants, strict=True))
        part = min(1.0, lacking / spare) if spare else 0.0
        wants = [few if want < few else want - part * (want - few) for few, want in zip(least, wants, strict=True)]
    return tuple(want * TEXT_WIDTH / sum(wants) for want in wants)


def _cell(text: str, size: float, width: float, measure: Measure) -> tuple[str, ...]:
    """Return the lines of a cell; a longer one ends with an ellipsis."""
    lines = [line.rstrip() for line in wrap(text, size, width, measure)]
    if len(lines) > CELL_LINES_MAX:
        last = lines[CELL_LINES_MAX - 1]
        while last and measure(f"{last}\u2026", size) > width:
            last = last[:-1]
        lines = [*lines[: CELL_LINES_MAX - 1], f"{last.rstrip(' ,;')}\u2026"]
    return tuple(lines)


def sources_of(slide: Slide) -> list[str]:
    """Return the distinct sources of a slide in the order of its points; the n-th is marked `[n]`."""
    return list(dict.fromkeys(plain(one) for one in slide.sources if one))


def _mark(slide: Slide, place: int, sources: Sequence[str]) -> str:
    source = slide.sources[place] if place < len(slide.sources) else None
    return f" [{sources.index(plain(source)) + 1}]" if source else ""


def _foot(sources: Sequence[str], measure: Measure, note: str = "") -> tuple[str, ...]:
    """Return a note and the sources, in the available lines."""
    text = note + "   ".join(f"[{number}] {source}" for number, source in enumerate(sources, start=1))
    lines = wrap(text, FOOT_SIZE, TEXT_WIDTH - 60, measure)
    if len(lines) > FOOT_LINES:
        lines = [*lines[: FOOT_LINES - 1], lines[FOOT_LINES - 1].rstrip() + " \u2026"]
    return tuple(line.rstrip() for line in lines)


# What a cell may have around its number; the header names a unit or currency.
_NUMBER = re.compile(r"[-+\u2212]?\d{1,3}(?:[ ,\u00a0\u202f]\d{3})*(?:\.\d+)?|[-+\u2212]?\d+(?:\.\d+)?")
# Nobody can distinguish more bars or series than this.
CATEGORIES_MAX, SERIES_MAX = 12, 4
# A column that is this many times as high makes the others lines.
SCALE_MAX = 20
_UNIT = re.compile(r"\(([^()]*)\)")


def chart_of(table: Table) -> Chart | None:
    """Return a table as a chart: its first column contains distinct categories, the others numbers; None if they do not."""
    categories = tuple(row[0] for row in table.rows)
    if not 2 <= len(categories) <= CATEGORIES_MAX or len(set(categories)) < len(categories):
        return None
    series: list[tuple[str, tuple[float, ...]]] = []
    for place, name in enumerate(table.header[1:], start=1):
        numbers = [_number(row[place]) for row in table.rows]
        told = tuple(one for one in numbers if one is not None)
        if len(told) < len(numbers):
            return None
        series.append((name, told))
    # Numbers of other units have no axis in common.
    if len({tuple(_UNIT.findall(name)) for name, _ in series}) > 1 or (series and _is_dwarfed(series)):
        return None
    return Chart(categories, tuple(series)) if 1 <= len(series) <= SERIES_MAX else None


def _is_dwarfed(series: Sequence[tuple[str, tuple[float, ...]]]) -> bool:
    """Return whether one series, or most columns of one, would be too small to be seen beside another."""
    highest = [max(map(abs, numbers)) for _, numbers in series]
    columns = [abs(number) for _, numbers in series for number in numbers if number]
    small = sum(SCALE_MAX * number < max(highest) for number in columns)
    return max(highest) > SCALE_MAX * min(highest) or 2 * small > len(columns)


def _number(cell: str) -> float | None:
    text = cell.strip().rstrip("%").strip()
    if _NUMBER.fullmatch(text) is None:
        return None
    return float(re.sub("[ ,\u00a0\u202f]", "", text).replace("\u2212", "-"))


def _title_lines(title: str, measure: Measure) -> tuple[float, tuple[str, ...]]:
    for size in TITLE_SIZES:
        lines = tuple(wrap(title, size, TEXT_WIDTH, measure))
        if len(lines) <= TITLE_LINES:
            break
    return size, lines


def _fit(points: Sequence[str], measure: Measure, height: float) -> tuple[list[tuple[Paragraph, ...]], float]:
    for size in BODY_SIZES:
        paragraphs = [Paragraph(tuple(_lines(point, size, measure))) for point in points]
        if _height(paragraphs, size) <= height:
            return [tuple(paragraphs)], size
    return list(_pages(paragraphs, size, height)), size


def _lines(point: str, size: float, measure: Measure) -> list[str]:
    """Return the lines of a point; the mark of its source is not alone on the last."""
    width = TEXT_WIDTH - INDENT
    lines = wrap(point, size, width, measure)
    if len(lines) > 1 and _MARK.fullmatch(lines[-1]):
        *rest, last = pieces_of(lines[-2])
        if rest and measure(last + lines[-1], size) <= width:
            lines[-2:] = ["".join(rest), last + lines[-1]]
    return lines


def _height(paragraphs: Sequence[Paragraph], size: float) -> float:
    lines = sum(len(paragraph.lines) for paragraph in paragraphs)
    return (lines + POINT_GAP * max(0, len(paragraphs) - 1)) * size * LEADING


def _pages(paragraphs: Sequence[Paragraph], size: float, height: float) -> Iterator[tuple[Paragraph, ...]]:
    """Split paragraphs into as many pages as they need; a paragraph is split only if it alone fills more than a page."""
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
    """Break a text into lines that fit a width, each with its trailing spaces; a piece that is wider is split."""
    lines = [""]
    for piece in pieces_of(text):
        if measure((lines[-1] + piece).rstrip(), size) <= width:
            lines[-1] += piece
        elif measure(piece.rstrip(), size) <= width:
            lines.append(piece)
        else:
            lines[-1:] = _broken(lines[-1] + piece, size, width, measure)
    return lines if lines[0] else []


def _broken(line: str, size: float, width: float, measure: Measure) -> list[str]:
    """Split a line into parts that fit, each of at least one letter."""
    parts = [""]
    for letter in letters_of(line):
        if parts[-1] and measure((parts[-1] + letter).rstrip(), size) > width:
            parts.append("")
        parts[-1] += letter
    return parts


def logo_size(width: int, height: int) -> tuple[float, float]:
    """Return the width and height at which a logo of this many pixels is drawn, in points, within the available space."""
    scale = min(LOGO_HEIGHT / height, LOGO_WIDTH_MAX / width)
    return width * scale, height * scale
