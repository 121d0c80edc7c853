"""Decks as PPTX.

Invariant: the same deck always gives the same bytes, so that a file written twice is one blob: the entries of its
archive have one date, and so has the deck. Texts are in the placeholders of titles and bodies, where programs expect
them; charts are charts, with their numbers; colours are the theme's, so that a user can change them in one place.
"""

from __future__ import annotations

import io
import re
import zipfile
from datetime import datetime
from typing import Any, NamedTuple

from pptx import Presentation
from pptx.chart.data import CategoryChartData
from pptx.dml.color import RGBColor
from pptx.enum.chart import XL_CHART_TYPE, XL_LEGEND_POSITION
from pptx.enum.dml import MSO_THEME_COLOR
from pptx.enum.shapes import MSO_SHAPE
from pptx.enum.text import MSO_AUTO_SIZE, PP_ALIGN
from pptx.opc.constants import RELATIONSHIP_TYPE
from pptx.oxml import parse_xml
from pptx.util import Pt

from highwater.connectors.jobs.pictures import check_logo, plate_of
from highwater.streams.jobs.bidi import base_level
from highwater.streams.jobs.layout import (
    BAND_WIDTH,
    BODY_BOTTOM,
    CELL_PADDING,
    FAINT,
    FOOT_SIZE,
    FOOT_TOP,
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
    Slide,
    Theme,
    chart_of,
    lay_out,
    lay_out_title,
    logo_size,
    plain,
    sources_of,
    wide_measure,
)

# The earliest date of an archive, for every deck: the job has the real one.
_DATE = (1980, 1, 1, 0, 0, 0)
_TIME = b"1980-01-01T00:00:00Z"
_WHEN = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
# The layouts of the library's template, by place.
_ONLY_TITLE, _TITLE_AND_BODY = 5, 1
_NAMES = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'


class _Logo(NamedTuple):
    """A picture, the size that it is drawn in, and the colours behind it on the title page and on the others."""

    content: bytes
    width: Pt
    height: Pt
    plates: tuple[str | None, ...]


def write_pptx(deck: Deck, theme: Theme = Theme()) -> bytes:  # noqa: B008 (it cannot be changed)
    """Return the file of a deck: its title, then its slides.

    Raises:
        UnreadableLogoError: the logo is not a picture.
    """
    logo = _logo_of(theme)
    file = Presentation()
    file.slide_width, file.slide_height = Pt(PAGE_WIDTH), Pt(PAGE_HEIGHT)
    _dress(file, theme)
    first = lay_out_title(deck, wide_measure)
    _describe(file, first.title)
    _add_title(file, first, theme, logo)
    for slide in deck.slides:
        for page in lay_out(slide, wide_measure):
            _add(file, page, _notes(slide) if page.part == 1 else "", logo)
    out = io.BytesIO()
    file.save(out)
    return _dateless(out)


def _logo_of(theme: Theme) -> _Logo | None:
    if theme.logo is None:
        return None
    width, height = map(Pt, logo_size(*check_logo(theme.logo)))
    return _Logo(theme.logo, width, height, tuple(plate_of(theme.logo, *colours) for colours in theme.plates))


def _describe(file: Any, title: str) -> None:
    about = file.core_properties
    about.title, about.author, about.last_modified_by, about.revision = title[:255], "Highwater", "Highwater", 1
    about.created = about.modified = datetime(*_DATE)  # noqa: DTZ001 (the library takes naive times for UTC)


def _dress(file: Any, theme: Theme) -> None:
    """Give the master the theme's colours and fonts, and a band at its edge."""
    part = file.slide_master.part.part_related_by(RELATIONSHIP_TYPE.THEME)
    xml = part.blob.decode()
    for name, colour in (("dk2", theme.primary), ("accent1", theme.primary), ("accent2", theme.accent)):
        xml = re.sub(rf"(<a:{name}>).*?(</a:{name}>)", rf'\1<a:srgbClr val="{colour}"/>\2', xml, flags=re.DOTALL)
    part._blob = xml.encode()  # noqa: SLF001 - the library has no other way to a theme
    band = (
        f'<p:sp {_NAMES}><p:nvSpPr><p:cNvPr id="99" name="Band"/><p:cNvSpPr/><p:nvPr userDrawn="1"/></p:nvSpPr><p:spPr>'
        f'<a:xfrm><a:off x="0" y="0"/><a:ext cx="{Pt(BAND_WIDTH)}" cy="{Pt(PAGE_HEIGHT)}"/></a:xfrm>'
        '<a:prstGeom prst="rect"><a:avLst/></a:prstGeom><a:solidFill><a:schemeClr val="accent2"/></a:solidFill>'
        "<a:ln><a:noFill/></a:ln></p:spPr></p:sp>"
    )
    file.slide_master.shapes._spTree.insert(2, parse_xml(band))  # noqa: SLF001 - as above


def _add_title(file: Any, page: Page, theme: Theme, logo: _Logo | None) -> None:
    slide = file.slides.add_slide(file.slide_layouts[_ONLY_TITLE])
    slide.background.fill.solid()
    slide.background.fill.fore_color.theme_color = MSO_THEME_COLOR.ACCENT_1
    font = _write_title(slide, page.title, page.title_size, PAGE_HEIGHT - 2 * TITLE_TOP)
    font.color.rgb = _colour(theme.on_primary)
    _add_logo(slide, logo, is_title=True)


def _write_title(slide: Any, text: str, size: float, height: float) -> Any:
    """Write the title of a page; return its font, for its colour."""
    shape = slide.shapes.title
    _place(shape, TITLE_TOP, height)
    _write(shape.text_frame, [text], size)
    paragraph = shape.text_frame.paragraphs[0]
    paragraph.alignment = PP_ALIGN.RIGHT if base_level(text) else PP_ALIGN.LEFT
    paragraph.font.bold = True
    return paragraph.font


def _add(file: Any, page: Page, notes: str, logo: _Logo | None) -> None:
    has_body = bool(page.paragraphs)
    slide = file.slides.add_slide(file.slide_layouts[_TITLE_AND_BODY if has_body else _ONLY_TITLE])
    font = _write_title(slide, page.shown_title, page.title_size, page.body_top - TITLE_TOP)
    font.color.theme_color = MSO_THEME_COLOR.TEXT_2
    height = max(page.body_size, PAGE_HEIGHT - page.body_top - BODY_BOTTOM)
    if has_body:
        body = slide.placeholders[1]
        _place(body, page.body_top, height)
        _write(body.text_frame, [paragraph.text for paragraph in page.paragraphs], page.body_size)
    if page.table is not None:
        _add_table(slide, page, height)
    _add_line(slide, MARGIN, FOOT_TOP, TEXT_WIDTH - 60, "\n".join(page.foot), FOOT_SIZE)
    _add_number(slide)
    _add_logo(slide, logo, is_title=False)
    if notes:
        slide.notes_slide.notes_text_frame.text = notes


def _notes(slide: Slide) -> str:
    sources = [f"[{number}] {source}" for number, source in enumerate(sources_of(slide), start=1)]
    return "\n".join(filter(None, (plain(slide.notes), *sources)))


def _add_table(slide: Any, page: Page, height: float) -> None:
    """Add a chart if the table is numbers by category, else the table."""
    assert page.table is not None
    area = Pt(MARGIN), Pt(page.body_top), Pt(TEXT_WIDTH), Pt(height)
    chart = chart_of(page.table)
    if chart is not None:
        _fill_chart(slide, chart, area)
    elif page.grid is not None:
        _fill_grid(slide, page.grid, area[:3])


def _fill_grid(slide: Any, grid: Grid, area: tuple[Any, ...]) -> None:
    """Add rows in the heights of the layout; with the rules of the library's table, without its bands."""
    drawn = slide.shapes.add_table(len(grid.cells), len(grid.widths), *area, Pt(sum(grid.heights))).table
    drawn.horz_banding = False
    numbers = grid.numbers
    for place, width in enumerate(grid.widths):
        drawn.columns[place].width = Pt(width)
    for number, (row, row_height) in enumerate(zip(grid.cells, grid.heights, strict=True)):
        drawn.rows[number].height = Pt(row_height)
        for place, lines in enumerate(row):
            cell = drawn.cell(number, place)
            cell.margin_left = cell.margin_right = Pt(CELL_PADDING)
            cell.margin_top = cell.margin_bottom = Pt(CELL_PADDING / 2)
            cell.text = " ".join(lines)
            cell.text_frame.paragraphs[0].font.size = Pt(grid.size)
            if numbers[place]:
                cell.text_frame.paragraphs[0].alignment = PP_ALIGN.RIGHT
            if number:
                cell.fill.background()


def _fill_chart(slide: Any, chart: Chart, area: tuple[Any, ...]) -> None:
    data: Any = CategoryChartData()  # type: ignore[no-untyped-call]
    data.categories = [plain(one) for one in chart.categories]
    for name, numbers in chart.series:
        data.add_series(plain(name), numbers)
    drawn = slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, *area, data).chart
    drawn.font.size = Pt(TABLE_SIZE)
    drawn.has_title = len(chart.series) == 1
    if drawn.has_title:
        drawn.chart_title.text_frame.text = plain(chart.series[0][0])
    drawn.has_legend = len(chart.series) > 1
    if drawn.has_legend:
        drawn.legend.position, drawn.legend.include_in_layout = XL_LEGEND_POSITION.BOTTOM, False
    plot = drawn.plots[0]
    plot.has_data_labels = len(chart.series) * len(chart.categories) <= 24


def _add_line(slide: Any, left: float, top: float, width: float, text: str, size: float) -> Any:
    if not text:
        return None
    frame = slide.shapes.add_textbox(Pt(left), Pt(top), Pt(width), Pt(size * 1.5 * (text.count("\n") + 1))).text_frame
    frame.word_wrap = True
    frame.margin_left = frame.margin_right = frame.margin_top = frame.margin_bottom = 0
    frame.text = text
    for paragraph in frame.paragraphs:
        paragraph.font.size = Pt(size)
        paragraph.font.color.rgb = _colour(FAINT)
    return frame


def _add_number(slide: Any) -> None:
    """Add the number of the page as a field, which stays right when pages are moved."""
    frame = _add_line(slide, PAGE_WIDTH - MARGIN - 40, NUMBER_TOP, 40, " ", NUMBER_SIZE)
    paragraph = frame.paragraphs[0]
    paragraph.alignment = PP_ALIGN.RIGHT
    for run in list(paragraph.runs):
        run._r.getparent().remove(run._r)  # noqa: SLF001 - the library has no fields
    field = (
        f'<a:fld {_NAMES} id="{{5B1B8E3C-0000-4000-8000-000000000001}}" type="slidenum">'
        f'<a:rPr lang="en" sz="{int(NUMBER_SIZE * 100)}"><a:solidFill><a:srgbClr val="{FAINT}"/></a:solidFill></a:rPr>'
        "<a:t>\u2039#\u203a</a:t></a:fld>"
    )
    paragraph._p.append(parse_xml(field))  # noqa: SLF001 - as above


def _colour(name: str) -> Any:
    return RGBColor.from_string(name)  # type: ignore[no-untyped-call]


def _add_logo(slide: Any, logo: _Logo | None, *, is_title: bool) -> None:
    if logo is not None:
        left = Pt(PAGE_WIDTH - MARGIN) - logo.width
        plate = logo.plates[0 if is_title else 1]
        if plate is not None:
            edge = Pt(LOGO_PLATE_EDGE)
            size = (logo.width + 2 * edge, logo.height + 2 * edge)
            shape = slide.shapes.add_shape(MSO_SHAPE.RECTANGLE, left - edge, Pt(LOGO_TOP) - edge, *size)
            shape.name = "Behind the logo"
            shape.fill.solid()
            shape.fill.fore_color.rgb = _colour(plate)
            shape.line.fill.background()
            shape.shadow.inherit = False
        picture = slide.shapes.add_picture(io.BytesIO(logo.content), left, Pt(LOGO_TOP), logo.width, logo.height)
        picture.name = "Logo"


def _place(shape: Any, top: float, height: float) -> None:
    shape.left, shape.top, shape.width, shape.height = Pt(MARGIN), Pt(top), Pt(TEXT_WIDTH), Pt(height)


def _write(frame: Any, texts: list[str], size: float) -> None:
    frame.word_wrap = True
    frame.auto_size = MSO_AUTO_SIZE.NONE
    for number, text in enumerate(texts):
        paragraph = frame.paragraphs[0] if number == 0 else frame.add_paragraph()
        paragraph.text = text
        paragraph.font.size = Pt(size)
        if base_level(text):
            paragraph._p.get_or_add_pPr().set("rtl", "1")  # noqa: SLF001 - the library knows no direction
            paragraph.alignment = PP_ALIGN.RIGHT
        if number:
            paragraph.space_before = Pt(size * POINT_GAP)


def _dateless(archive: io.BytesIO) -> bytes:
    """Return the archive with one date for all its entries, including those of the workbooks of charts."""
    out = io.BytesIO()
    with zipfile.ZipFile(archive) as dated, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as written:
        for entry in dated.infolist():
            info = zipfile.ZipInfo(entry.filename, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o600 << 16
            content = dated.read(entry)
            if entry.filename.endswith(".xlsx"):
                content = _dateless(io.BytesIO(content))
            elif entry.filename == "docProps/core.xml":
                content = _WHEN.sub(_TIME, content)
            written.writestr(info, content)
    return out.getvalue()
