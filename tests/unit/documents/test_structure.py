"""Documents that are text: what a reader sees of them, in blocks."""

from __future__ import annotations

import io
import zipfile

import pptx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reportlab.pdfgen import canvas

from highwater.connectors.documents.formats import blocks_of
from highwater.streams.documents.chunking import Block, cut
from highwater.streams.documents.prose import tables_of
from highwater.streams.documents.structure import (
    Run,
    UnreadableDocumentError,
    decoded,
    markdown_blocks,
    plain_blocks,
    sized_blocks,
)
from highwater.streams.documents.web_page import html_blocks, html_charset


def test_paragraphs_stand_apart_by_empty_lines():
    """Lines of a paragraph stay together."""
    assert plain_blocks("a\nb\n\n \n\nc") == [Block("a\nb"), Block("c")]


def test_markdown_has_headings_and_code():
    """Both kinds of headings are read; text in a fence is never a heading, and empty lines do not end the fence."""
    text = "# One #\ntext\n\nTwo\n---\n- a\n- b\n\n~~~sh\n# no heading\n\nls\n~~~\n###### Six\n#no heading"
    assert markdown_blocks(text) == [
        Block("One", 1),
        Block("text"),
        Block("Two", 2),
        Block("- a\n- b"),
        Block("~~~sh\n# no heading\n\nls\n~~~"),
        Block("Six", 6),
        Block("#no heading"),
    ]


def test_a_fence_that_is_not_closed_loses_nothing():
    """It goes to the end."""
    assert markdown_blocks("```\ncode\n\nmore") == [Block("```\ncode\n\nmore")]


def test_html_gives_what_a_reader_sees():
    """No scripts, styles, comments or attributes; entities are letters; rows and items are blocks."""
    text = (
        "<!doctype html><meta charset=utf-8><title>No</title><script>var p = '<p>no';</script><style>p {}</style>"
        "<h1>A &amp; B</h1><!-- no --><p title=no>one <b>two</b><br>three<ul><li>four<li>five</ul>"
        "<pre>a\n  b</pre><table><tr><td>1<td>2</table><svg><text>no</text></svg><noscript>no</noscript>six"
    )
    assert html_blocks(text) == [
        Block("A & B", 1),
        Block("one two\nthree"),
        Block("four"),
        Block("five"),
        Block("```\na\n  b\n```"),
        Block("1 2"),
        Block("six"),
    ]


@given(st.text(st.sampled_from("<>/ ab!-&;\"'=hpre1"), max_size=200))
def test_no_html_breaks_the_reader(text: str):
    """Any HTML gives blocks."""
    assert all(block.text for block in html_blocks(text))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("é".encode(), "é"),
        ("é".encode("utf-8-sig"), "é"),
        ("é".encode("utf-16"), "é"),
        (b"a\r\nb\rc\x07\x1b[0m", "a\nb\nc  [0m"),
    ],
)
def test_a_text_is_decoded_by_its_mark(raw: bytes, text: str):
    """Line ends are of one kind, and characters that cannot be shown are white space."""
    assert decoded(raw) == text


@pytest.mark.parametrize("raw", [b"\xff\xff\xff", "é".encode("latin-1"), b"a\0b"])
def test_what_is_not_text_is_refused(raw: bytes):
    """Rather than guessed at."""
    with pytest.raises(UnreadableDocumentError):
        decoded(raw)


def test_html_names_its_charset():
    """Both forms are read; an unknown charset makes the document unreadable."""
    assert html_charset(b"<meta charset='windows-1251'>") == "windows-1251"
    assert html_charset(b'<meta http-equiv=content-type content="text/html; charset=koi8-r">') == "koi8-r"
    assert html_charset(b"<p>") is None
    assert decoded("Ж".encode("koi8-r"), "koi8-r") == "Ж"
    with pytest.raises(UnreadableDocumentError):
        decoded(b"a", "no-such")


def test_lines_that_are_set_larger_are_headings():
    """The larger the higher; lines of one size after each other are one heading, and the text between is as in a plain text."""
    page = [
        Run("Offsets and\ncommits\n", 18.0),
        Run("A consumer ", 11.0),
        Run("commits", 11.02),
        Run(" offsets.\n\nTwice.\n", 11.0),
        Run("Rebalances\n", 14.0),
        Run("a note\n", 8.0),
    ]
    assert sized_blocks([page, [Run("Partitions move between consumers.\n1.\n", 11.0), Run("7\n", 20.0)]]) == [
        Block("Offsets and commits", 1),
        Block("A consumer commits offsets."),
        Block("Twice."),
        Block("Rebalances", 2),
        Block("a note"),
        Block("Partitions move between consumers.\n1.\n7"),
    ]


def test_text_of_one_size_has_no_headings():
    """Neither has a text of unknown sizes, nor a whole paragraph in larger letters."""
    for size in (0.0, 12.0):
        assert sized_blocks([[Run("One.\n\nTwo.", size)]]) == [Block("One."), Block("Two.")]
    long = "large " * 40
    assert sized_blocks([[Run(f"{long}\n", 20.0), Run("small " * 60, 10.0)]])[0].heading == 0
    assert sized_blocks([]) == []


def test_headings_of_a_pdf():
    """A text below a heading of a PDF has it as its title, and the heading is not joined to another text."""
    made = io.BytesIO()
    page = canvas.Canvas(made)
    page.scale(2, 2)
    for size, height, text in (
        (9, 400, "Offsets"), (5, 380, "A consumer commits them."), (5, 370, "It goes on."), (7, 350, "Lag"), (5, 340, "Grows."),
    ):  # fmt: skip
        page.setFont("Helvetica", size)
        page.drawString(36, height, text)
    page.save()
    assert cut(blocks_of(made.getvalue(), "application/pdf"), len, 1_000) == [
        ("A consumer commits them.\nIt goes on.", "Offsets"),
        ("Grows.", "Offsets > Lag"),
    ]


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("---\nname: x\ntitle: 'A b'\n---\nText", [Block("A b", 1), Block("Text")]),
        ("---\nname: x\ntags:\n- a\n  - b\n\n# c\n---\n\n# T\n\n---\n", [Block("T", 1), Block("---")]),
        ("---\nno key\n---\n", [Block("---\nno key\n---")]),
        ("text\n\n---\nname: x\n---\n", [Block("text"), Block("---\nname: x\n---")]),
    ],
)
def test_front_matter_is_no_text(text: str, blocks: list[Block]):
    """Only its title becomes a heading; rules elsewhere, or around a sentence, are not front matter."""
    assert markdown_blocks(text) == blocks


def test_what_a_site_has_around_a_document_is_left_out():
    """If a page marks its main part, menus and help are left out; otherwise the whole page is read."""
    text = (
        "<nav>Menu</nav><div>Press ? for help</div><main><h1>Log</h1><p>It\u2019s kept.</p></main><footer>2026</footer>"
    )
    assert html_blocks(text) == [Block("Log", 1), Block("It\u2019s kept.")]
    assert len(html_blocks(text.replace("main>", "div>"))) == 5


def test_what_runs_through_the_pages_of_a_pdf_is_no_text():
    """The title at the head of most pages and the number at their foot; what stands on one page, or on two of many, stays."""
    pages = [
        [Run(f"Handbook\nPage {number} says this.\nAnd more of it here.\nAnd the rest.\n{number}\n", 10.0)]
        for number in range(1, 6)
    ]
    text = "\n".join(block.text for block in sized_blocks(pages))
    assert "Handbook" not in text
    assert [f"Page {number} says this." in text for number in range(1, 6)] == [True] * 5
    assert "Handbook" in "\n".join(block.text for block in sized_blocks(pages[:2]))


def test_a_table_with_a_header_is_a_table():
    """In Markdown, with what cells span left empty and bars escaped; its caption and what follows are blocks of their own."""
    text = (
        "<table><caption>Speeds</caption><thead><tr><td></td><th>one <b>two</b><th colspan=2>three<tbody>"
        "<tr><th rowspan=2>a<br>b</th><td><p>1</p><p>2</p></td><td>x|y</td></tr><tr><td>3</td></tr></table>after"
    )
    assert html_blocks(text) == [
        Block("Speeds"),
        Block("|  | one two | three |  |\n| - | - | - | - |\n| a b | 1 2 | x\\|y |  |\n|  | 3 |  |  |"),
        Block("after"),
    ]
    assert html_blocks(f"<p>menu</p><main>{text}</main>") == html_blocks(text)


def test_rows_without_a_header_are_lines():
    """The meaning of their columns is unknown."""
    assert html_blocks("<table><tr><td>1<td>2<tr><td>3<td>4</table>") == [Block("1 2"), Block("3 4")]


@pytest.mark.parametrize(
    "cell", ["<table><tr><td>2</table>", "<h2>2</h2>", "<ul><li>2</ul>", "<pre>2</pre>", "2 " * 600]
)
def test_a_table_that_arranges_a_page_stays_text(cell: str):
    """Other tables, headings, lists, code and long texts are in no table of values."""
    found = html_blocks(f"<table><tr><th>a<th>b<tr><td>1<td>{cell}</table>")
    assert not any(block.text.startswith("|") for block in found)
    assert [word for block in found for word in block.text.replace("```", "").split()][:4] == ["a", "b", "1", "2"]


_PARTS = ("table", "tr", "td", "th", "/td", "/tr", "/table", "thead", "main", "p", "br", "dl", "dt", "dd", "/dl")


@given(st.lists(st.sampled_from([*(f"<{part}>" for part in _PARTS), "x", "y"]), max_size=40))
def test_no_table_or_list_loses_a_word(parts: list[str]):
    """This holds for unclosed elements; without a main part nothing is left out."""
    text = " ".join(block.text for block in html_blocks(" ".join(parts)))
    found = [sign for sign in text if sign in "xy"]
    assert "<main>" in parts or found == [part for part in parts if part in "xy"]


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ('club,points\n"Bayern, Munich",84\n\nDortmund,55\n', "| Bayern, Munich | 84 |\n| Dortmund | 55 |"),
        ("club;points\nBayern, Munich;84\nDortmund;55", "| Bayern, Munich | 84 |\n| Dortmund | 55 |"),
        ("club\tpoints\nBayern, Munich\t84\nDortmund\t55", "| Bayern, Munich | 84 |\n| Dortmund | 55 |"),
    ],
)
def test_separated_values_are_a_table(text: str, table: str):
    """Its first line is the header."""
    assert blocks_of(text.encode(), "text/csv; charset=utf-8") == [Block(f"| club | points |\n| - | - |\n{table}")]


@pytest.mark.parametrize(
    "rows",
    [
        "1.1,Buzz,1997-06-05\n7,Wheezy,2016-04-25,2018-05-31\n14,Forky\n",
        "7,Wheezy,2016-04-25,2018-05-31\n14,Forky, Sid, and more\n",
    ],
)
def test_lines_of_other_lengths_are_rows(rows: str):
    """A line without its last values has empty cells; values beyond the header belong to the last column."""
    (table,) = tables_of(blocks_of(f"version,name,eol,lts\n{rows}".encode(), "text/csv")[0].text)
    assert table.header == ("version", "name", "eol", "lts")
    assert table.rows[-1] in (("14", "Forky", "", ""), ("14", "Forky", "Sid", "and more"))
    surplus = blocks_of(b"a,b\n1,2,3,4\n5,6", "text/csv")
    assert surplus == [Block("| a | b |\n| - | - |\n| 1 | 2, 3, 4 |\n| 5 | 6 |")]


def test_a_table_of_contents_is_left_out():
    """It repeats the headings. A link within a sentence, and a list of other links, are text."""
    text = "# A\n\n* [One](#one)\n  * [One b](#one-b)\n\nSee [one](#one).\n\n* [Elsewhere](b.md#c)\n\n```\n* [x](#x)\n```\n"
    assert [block.text for block in markdown_blocks(text)] == [
        "A",
        "See [one](#one).",
        "* [Elsewhere](b.md#c)",
        "```\n* [x](#x)\n```",
    ]
    page = (
        '<h1>A<a href="#a">\u00b6</a></h1><ul><li><a href="#b">1. B</a><li><a href="a.html#c">C</a>'
        '<ul><li><a href="#d">D</a></ul></ul>'
        '<p>Next: <a href="b.html" rel="next">B</a>, Up: <a href="i.html" rel="up">Top</a><p>See <a href="#b">B</a>.'
        '<h2><a href="#b">B</a></h2><p><a href="http://a.b/c#d">Elsewhere</a>'
    )
    assert [block.text for block in html_blocks(page)] == ["A", "See B.", "B", "Elsewhere"]


def test_a_text_without_columns_stays_text():
    """Also under the name of a table."""
    assert blocks_of(b"One.\n\nTwo.", "text/csv") == [Block("One."), Block("Two.")]


def test_the_table_of_a_slide_is_a_table():
    """Its first row is the header; a single column is a list."""
    made, file = pptx.Presentation(), io.BytesIO()
    slide = made.slides.add_slide(made.slide_layouts[6])
    for cells in ([["club", "points"], ["Bayern", "84"]], [["one"], ["two"]]):
        table = slide.shapes.add_table(len(cells), len(cells[0]), 0, 0, 100, 100).table
        for row, texts in enumerate(cells):
            for column, text in enumerate(texts):
                table.cell(row, column).text = text
    made.save(file)
    assert blocks_of(file.getvalue(), "application/octet-stream") == [
        Block("| club | points |\n| - | - |\n| Bayern | 84 |"),
        Block("one\ntwo"),
    ]


def test_the_points_of_a_slide_are_paragraphs():
    """Each says something alone, without a mark at its end."""
    made, file = pptx.Presentation(), io.BytesIO()
    slide = made.slides.add_slide(made.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text = "Next steps", "Rehearse the move\nBuy disks"
    made.save(file)
    assert blocks_of(file.getvalue(), "application/octet-stream") == [
        Block("Next steps", 1),
        Block("Rehearse the move"),
        Block("Buy disks"),
    ]


def test_a_term_stands_before_its_definition():
    """Otherwise the definition has no subject. Terms without one are lines; a heading or code is not a definition."""
    text = (
        "<dl><dt>adm</dt><dd><p>Reads logs.</p><p>More.</p></dd><dt>a<dt>b?<dd>Both.</dl><dl><dt>1. One<dt>2. Two</dl>"
        "<dl><dt><h2>Head</h2></dt><dd>Text.<dt>code<dd><pre>x</pre></dl>"
    )
    assert [block.text for block in html_blocks(text)] == [
        "**adm:** Reads logs.",
        "More.",
        "**a, b?** Both.",
        "1. One",
        "2. Two",
        "Head",
        "Text.",
        "code",
        "```\nx\n```",
    ]
    assert [block.text for block in html_blocks("<dl><dt>int f (char *a)<dd>Adds.</dl>")] == ["int f (char *a): Adds."]


def test_code_in_html_is_code():
    """As Markdown has it, so that nothing in it is taken for a tag or the end of a sentence; not in headings and programs."""
    text = (
        "<h1>The <code>asm!</code> macro</h1><p>Use <tt>Vec&lt;T&gt;</tt> or <code>asm!</code>, "
        "<code></code>or<code>x<pre>a <code>b</code></pre>"
    )
    assert [block.text for block in html_blocks(text)] == [
        "The asm! macro",
        "Use `Vec<T>` or `asm!`, or`x`",
        "```\na b\n```",
    ]
    named = (
        "<h2>The &lt;dir&gt; element</h2><p>An &lt;include&gt; names a &lt;dir&gt;, if 1 &lt; 2.<pre>&lt;b&gt;</pre>"
    )
    assert [block.text for block in html_blocks(named)] == [
        "The <dir> element",
        "An `<include>` names a `<dir>`, if 1 < 2.",
        "```\n<b>\n```",
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("word/document.xml", "it is a Word document: save it as PDF"),
        ("xl/workbook.xml", "it is an Excel workbook: save it as CSV"),
        ("a.txt", "it is an archive and not a PPTX"),
    ],
)
def test_another_archive_is_named(name: str, reason: str):
    """With the format that can be read instead."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, "text")
    with pytest.raises(UnreadableDocumentError, match=reason):
        blocks_of(file.getvalue(), "application/octet-stream")
