"""Files that a library opens: what a reader sees on their pages and slides."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pptx
import pypdf
import pytest
from lxml import etree
from pptx.chart.data import CategoryChartData, XyChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.opc.package import Part
from pptx.opc.packuri import PackURI
from pypdf.annotations import FreeText, Text
from reportlab.pdfgen import canvas

from highwater.connectors.documents.formats import blocks_of
from highwater.streams.documents.chunking import Block
from highwater.streams.documents.decoding import UnreadableDocumentError

PPTX = "application/octet-stream"
NAMES = (
    'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:a14="http://schemas.microsoft.com/office/drawing/2010/main" '
    'xmlns:dgm="http://schemas.openxmlformats.org/drawingml/2006/diagram"'
)


def slide_of(fill: Callable[[Any], None]) -> list[Block]:
    """The blocks of a deck of one slide."""
    made, file = pptx.Presentation(), io.BytesIO()
    fill(made.slides.add_slide(made.slide_layouts[6]))
    made.save(file)
    return blocks_of(file.getvalue(), PPTX)


def box(text: str, number: int = 50) -> str:
    """A text box, with more elements in its paragraph."""
    return (
        f'<p:sp><p:nvSpPr><p:cNvPr id="{number}" name="T"/><p:cNvSpPr txBox="1"/><p:nvPr/></p:nvSpPr><p:spPr/>'
        f"<p:txBody><a:bodyPr/><a:p>{text}</a:p></p:txBody></p:sp>"
    )


def test_a_chart_is_its_titles_and_a_table():
    """A row for each category, a column for each series; one without categories, of points, likewise."""

    def fill(slide: Any) -> None:
        cargo = CategoryChartData()
        cargo.categories = ["Spring", "Summer"]
        cargo.add_series("Containers", (3, 5))
        cargo.add_series("Timber", (1, 0.5))
        chart = slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, 0, 0, 9, 9, cargo).chart
        chart.has_title, chart.chart_title.text_frame.text = True, "Cargo by quarter"
        chart.value_axis.has_title, chart.value_axis.axis_title.text_frame.text = True, "Thousands"
        points = XyChartData()
        points.add_series("Tide").add_data_point(1.5, 2)
        slide.shapes.add_chart(XL_CHART_TYPE.XY_SCATTER, 0, 0, 9, 9, points)

    assert [block.text.replace(".0", "") for block in slide_of(fill)] == [
        "Cargo by quarter",
        "Thousands",
        "|  | Containers | Timber |\n| - | - | - |\n| Spring | 3 | 1 |\n| Summer | 5 | 0.5 |",
        "|  | Tide |\n| - | - |\n| 1.5 | 2 |",
    ]


def test_diagrams_alternatives_and_formulas_are_read_once():
    """The texts of SmartArt, the first of alternatives, formulas; the number of a slide is filled in when it is shown."""

    def fill(slide: Any) -> None:
        texts = "".join(
            f"<dgm:pt><dgm:t><a:p><a:r><a:t>{one}</a:t></a:r></a:p></dgm:t></dgm:pt>" for one in ("Load", "Weigh")
        )
        data = f"<dgm:dataModel {NAMES}><dgm:ptLst>{texts}</dgm:ptLst></dgm:dataModel>"
        kind = "application/vnd.openxmlformats-officedocument.drawingml.diagramData+xml"
        part = Part(PackURI("/ppt/diagrams/data1.xml"), kind, slide.part.package, data.encode())
        name = slide.part.relate_to(
            part, "http://schemas.openxmlformats.org/officeDocument/2006/relationships/diagramData"
        )
        formula = "<a:r><a:t>Speed </a:t></a:r><a14:m><m:oMath><m:r><m:t>v=s/t</m:t></m:r></m:oMath></a14:m>"
        number = '<a:r><a:t>Sheet</a:t></a:r><a:fld type="slidenum" id="{0}"><a:t>7</a:t></a:fld>'
        group = "<p:nvGrpSpPr/><p:grpSpPr/>"
        for shape in (
            (
                f'<p:graphicFrame><p:nvGraphicFramePr><p:cNvPr id="9" descr="Two steps"/></p:nvGraphicFramePr><a:graphic>'
                f'<a:graphicData><dgm:relIds r:dm="{name}"/></a:graphicData></a:graphic></p:graphicFrame>'
            ),
            (
                f'<mc:AlternateContent><mc:Choice Requires="a14">{box(formula)}</mc:Choice>'
                f"<mc:Fallback>{box('<a:r><a:t>Speed</a:t></a:r>')}</mc:Fallback></mc:AlternateContent>"
            ),
            (
                f"<p:grpSp>{group}<mc:AlternateContent><mc:Fallback>{box('<a:r><a:t>Deep</a:t></a:r>', 51)}</mc:Fallback>"
                f"</mc:AlternateContent></p:grpSp>"
            ),
            box(number, 52),
        ):
            slide.shapes._spTree.append(etree.fromstring(f"<x {NAMES}>{shape}</x>")[0])

    assert [block.text for block in slide_of(fill)] == ["Load", "Weigh", "Two steps", "Speed v=s/t", "Deep", "Sheet"]


def page_of(*lines: str, fill: Callable[[Any], None] = lambda _: None) -> bytes:
    """A PDF of one page of lines."""
    made = io.BytesIO()
    page = canvas.Canvas(made)
    for place, line in enumerate(lines):
        page.drawString(72, 700 - 20 * place, line)
    fill(page)
    page.save()
    return made.getvalue()


def test_what_is_written_onto_a_page_is_read():
    """Filled-in fields and texts on the page; a remark and an attached file are left out, and named."""

    def fill(page: Any) -> None:
        page.acroForm.textfield(name="boat", value="Seal", x=72, y=500)
        page.acroForm.textfield(name="empty", x=72, y=400)
        page.acroForm.checkbox(name="box", checked=True, x=72, y=300)

    writer = pypdf.PdfWriter(clone_from=io.BytesIO(page_of("Name of the boat", fill=fill)))
    writer.add_annotation(0, FreeText(text="Berth 7", rect=(50, 50, 90, 90)))
    writer.add_annotation(0, Text(text="Is this so?", rect=(50, 50, 90, 90)))
    writer.add_attachment("berths.csv", b"1,2")
    out = io.BytesIO()
    writer.write(out)
    assert [(block.text, block.left_out) for block in blocks_of(out.getvalue(), "application/pdf")] == [
        ("Name of the boat", None),
        ("Seal", None),
        ("Berth 7", None),
        ("Is this so?", "remark"),
        ("berths.csv", "attachment"),
    ]


def test_a_page_of_pictures_is_named():
    """A scan in a document of text is named; a document of scans alone is refused with their number."""
    from PIL import Image

    def scan(page: Any) -> None:
        page.drawInlineImage(Image.new("RGB", (4, 4)), 0, 0)
        page.drawImage(pptx_picture(), 0, 0)

    def pptx_picture() -> Any:
        from reportlab.lib.utils import ImageReader

        return ImageReader(Image.new("RGB", (4, 4)))

    writer = pypdf.PdfWriter()
    for raw in (page_of("Tides."), page_of(fill=scan)):
        writer.append(io.BytesIO(raw))
    out = io.BytesIO()
    writer.write(out)
    assert [(block.text, block.left_out) for block in blocks_of(out.getvalue(), "application/pdf")] == [
        ("Tides.", None),
        ("page 2", "picture_page"),
    ]
    with pytest.raises(UnreadableDocumentError, match=r"no text beside what is left out \(picture_page: 1\)"):
        blocks_of(page_of(fill=scan), "application/pdf")


def test_turned_lines_are_read():
    """The text of a page printed across it."""

    def turned(page: Any) -> None:
        page.rotate(90)
        page.drawString(100, -100, "Turned line")

    assert "Turned line" in " ".join(
        block.text for block in blocks_of(page_of("Even line", fill=turned), "application/pdf")
    )
