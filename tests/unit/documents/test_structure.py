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
from highwater.streams.documents.decoding import UnreadableDocumentError, decoded, html_charset
from highwater.streams.documents.prose import tables_of
from highwater.streams.documents.structure import Run, markdown_blocks, plain_blocks, sized_blocks
from highwater.streams.documents.web_page import html_blocks


def in_text(blocks: list[Block]) -> list[Block]:
    """The blocks that become chunks."""
    return [block for block in blocks if block.left_out is None]


def of_pages(*pages: str) -> list[Block]:
    """The blocks of pages in letters of one size."""
    return [block for page in sized_blocks([[Run(page, 10.0)] for page in pages]) for block in page]


def apart(blocks: list[Block]) -> list[tuple[str, str]]:
    """The blocks that are left out, each with the reason."""
    return [(str(block.left_out), block.text) for block in blocks if block.left_out is not None]


@pytest.mark.parametrize("declaration", ["<![<![x>", "<![5 >", "<![if !IE]>"])
def test_a_declaration_of_no_form_is_a_comment(declaration: str) -> None:
    """As browsers read it; the text around it is kept."""
    assert [block.text for block in html_blocks(f"<p>a</p>{declaration}<p>b</p>")] == ["a", "b"]


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
        "<pre>a\n  b</pre><table><tr><td>1<td>2</table><svg><title>no</title><text>a</text><text>b</text></svg>"
        "<noscript>Enable scripts.</noscript>six<template><p>no</template><iframe>no</iframe>"
    )
    assert apart(html_blocks(text)) == [("page_title", "No"), ("no_script", "Enable scripts.")]
    assert in_text(html_blocks(text)) == [
        Block("A & B", 1),
        Block("one two\nthree"),
        Block("four"),
        Block("five"),
        Block("```\na\n  b\n```"),
        Block("1 2"),
        Block("a\nb"),
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
        [
            Block("Offsets and commits", 1),
            Block("A consumer commits offsets."),
            Block("Twice."),
            Block("Rebalances", 2),
            Block("a note"),
        ],
        [Block("Partitions move between consumers.\n1.\n7")],
    ]


def test_text_of_one_size_has_no_headings():
    """Neither has a text of unknown sizes, nor a whole paragraph in larger letters."""
    for size in (0.0, 12.0):
        assert sized_blocks([[Run("One.\n\nTwo.", size)]]) == [[Block("One."), Block("Two.")]]
    long = "large " * 40
    assert sized_blocks([[Run(f"{long}\n", 20.0), Run("small " * 60, 10.0)]])[0][0].heading == 0
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
    """Only its title becomes a heading, the whole is left out; rules elsewhere, or around a sentence, are not front matter."""
    assert in_text(markdown_blocks(text)) == blocks
    is_front = text.startswith("---\nname")
    assert [reason for reason, _ in apart(markdown_blocks(text))] == ["front_matter"] * is_front


def test_what_a_site_has_around_a_document_is_left_out():
    """If a page marks its main part, menus and help are left out; otherwise the whole page is read."""
    text = (
        "<nav>Menu</nav><div>Press ? for help</div><main><h1>Log</h1><p>It\u2019s kept.</p></main><footer>2026</footer>"
    )
    assert in_text(html_blocks(text)) == [Block("Log", 1), Block("It\u2019s kept.")]
    beside = [("navigation", "Menu"), ("outside_main", "Press ? for help"), ("outside_main", "2026")]
    assert apart(html_blocks(text)) == beside
    assert len(in_text(html_blocks(text.replace("main>", "div>")))) == 4


@pytest.mark.parametrize(
    "part",
    [
        '<div class="related" role="navigation"><h3>Navigation</h3><ul><li><a href="i.html">index</a> |</li></ul></div>',
        '<div class="sphinxsidebar" role="navigation"><h3>Table of Contents</h3><h4>Next topic</h4>Offsets</div>',
        '<nav class="md-nav" aria-label="Navigation"><ul><li><nav><label>Guide</label></nav></li></ul></nav>',
        '<nav aria-label="Breadcrumbs"><ul class="breadcrumbs"><li>Docs</li><li>Log</li></ul></nav>',
        '<ul class="wy-breadcrumbs"><li><a href="i.html">Docs</a></li><li>Log</li></ul>',
        "<NAV><dl><dt>Previous</dt></dl></NAV>",
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_first", [True, False])
def test_the_navigation_of_a_page_is_no_text(part: str, *, is_first: bool):
    """As Sphinx, Material for MkDocs, Docusaurus and Read the Docs write it: bars, trees, breadcrumbs, previous and next page."""
    page = "<div><h1>Log</h1><p>It is kept.</p></div>"
    blocks = html_blocks(part + page if is_first else page + part)
    assert in_text(blocks) == [Block("Log", 1), Block("It is kept.")]
    assert {reason for reason, _ in apart(blocks)} == {"navigation"}


def test_a_page_that_is_all_navigation_or_does_not_end_it_is_text():
    """A site map, and a page whose part has no end tag."""
    assert in_text(html_blocks("<nav><h1>Map</h1><p>Log</p></nav>")) == [Block("Map", 1), Block("Log")]
    assert in_text(html_blocks("<nav><p>Menu</p><h1>Log</h1><p>It is kept.")) == [
        Block("Menu"),
        Block("Log", 1),
        Block("It is kept."),
    ]


def test_what_runs_through_the_pages_of_a_pdf_is_no_text():
    """The title at the head of most pages and the number at their foot; what stands on one page, or on two of many, stays."""
    pages = [
        f"Handbook\nPage {number} says this.\nAnd more of it here.\nAnd the rest.\n{number + 2}\n"
        for number in range(1, 6)
    ]
    text = "\n".join(block.text for block in in_text(of_pages(*pages)))
    assert "Handbook" not in text
    assert [f"Page {number} says this." in text for number in range(1, 6)] == [True] * 5
    assert apart(of_pages(*pages))[:2] == [("running_head", "Handbook"), ("page_number", "3")]
    assert "Handbook" in "\n".join(block.text for block in in_text(of_pages(*pages[:2])))


@pytest.mark.parametrize(
    "line",
    ["Berth {}", "{} berths", "Total due {} EUR", "Step {}", "\u20ac {}", "Berth {} of 14", "Sheet {} of 9", "P {}"],
)
def test_lines_that_differ_in_a_number_are_text(line: str):
    """Also if the number counts up with the pages: only a page is counted so, beside a word for it or beside nothing."""
    pages = [f"{line.format(number)}\nText {number * 7}.\n{line.format(number)}" for number in range(11, 15)]
    assert apart(of_pages(*pages)) == []
    unsteady = [f"Text {number}.\n{number * number}" for number in range(11, 15)]
    assert apart(of_pages(*unsteady)) == []


@pytest.mark.parametrize(
    "line",
    [
        "Page {}",
        "- {} -",
        "{} / 14",
        "Log handbook, page {} of 14",
        "Seite {} von 14",
        "\u7b2c {} \u9875",
        "Offsets | {}",
        "Offsets {}",
    ],
)
def test_the_number_of_a_page_counts_up_with_the_pages(line: str):
    """From any first number, beside a word for a page or words that are a line elsewhere; on one page it may be missing."""
    pages = [f"Text {number * 7}.\nOffsets\nMore.\n{line.format(number)}" for number in range(11, 16)]
    assert apart(of_pages(*pages, "End.")) == [("page_number", line.format(number)) for number in range(11, 16)]


def test_a_table_with_a_header_is_a_table():
    """In Markdown, with what cells span left empty and bars escaped; its caption and what follows are blocks of their own."""
    text = (
        "<table><caption>Speeds</caption><thead><tr><td></td><th>one <b>two</b><th colspan=2>three<tbody>"
        "<tr><th rowspan=2>a<br>b</th><td><p>1</p><p>2</p></td><td>x|y</td></tr><tr><td>3</td></tr></table>after"
    )
    assert html_blocks(text) == [
        Block("Speeds"),
        Block("|  | one two | three |  |\n| - | - | - | - |\n| a b | 1 2 | x\\|y |\n|  | 3 |"),
        Block("after"),
    ]
    assert in_text(html_blocks(f"<p>menu</p><main>{text}</main>")) == html_blocks(text)


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
    """This holds for unclosed elements, and with what is left out beside the main part."""
    text = " ".join(block.text for block in html_blocks(" ".join(parts)))
    found = [sign for sign in text if sign in "xy"]
    assert found == [part for part in parts if part in "xy"]


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
    text = (
        "# A\n\n* [1. One](#one)\n  * [`One` b](#one-b)\n* [What is two?](#two)\n\nSee [one](#one).\n\n"
        "* [Elsewhere](b.md#c)\n\n```\n* [One](#x)\n```\n# One\n## One b\n## Two\n"
    )
    assert [block.text for block in in_text(markdown_blocks(text))] == [
        "A",
        "* [What is two?](#two)",
        "See [one](#one).",
        "* [Elsewhere](b.md#c)",
        "```\n* [One](#x)\n```",
        "One",
        "One b",
        "Two",
    ]
    assert apart(markdown_blocks(text)) == [("contents", "* [1. One](#one)"), ("contents", "* [`One` b](#one-b)")]
    page = (
        '<h1>A<a href="#a">\u00b6</a></h1><ul><li><a href="#b">1. B</a><li><a href="a.html#c">C</a>'
        '<ul><li><a href="#d">D</a></ul></ul>'
        '<p>Next: <a href="b.html" rel="next">B</a>, Up: <a href="i.html" rel="up">Top</a><p>See <a href="#b">B</a>.'
        '<h2><a href="#b">B</a></h2><p><a href="http://a.b/c#d">Elsewhere</a>'
    )
    assert [block.text for block in in_text(html_blocks(page))] == ["A", "C", "D", "See B.", "B", "Elsewhere"]
    assert apart(html_blocks(page)) == [("contents", "1. B"), ("navigation", "Next: B, Up: Top")]


def test_a_link_whose_words_stand_nowhere_else_is_text():
    """A question whose link opens the answer, a term, another number, a sentence with a link to the next page."""
    page = (
        '<dl><dd><a href="#p1">May I bring a dog?</a><div id="p1">On a lead.</div></dl>'
        '<dl><dt><a href="#p2">Lost property</a></dt><dd>Ask the master.</dl><ul><li><a href="#b">2 berths</a></ul>'
        '<h2>3 berths</h2><p>Go on with <a href="b.html" rel="next">the second part</a> of it.</p>'
    )
    assert apart(html_blocks(page)) == []
    assert [block.text for block in html_blocks(page)] == [
        "May I bring a dog?",
        "On a lead.",
        "**Lost property:** Ask the master.",
        "2 berths",
        "3 berths",
        "Go on with the second part of it.",
    ]


def test_what_stands_for_pictures_and_fields_is_read():
    """The text for a picture, a value in a form, a formula, a shadow tree, a section without marks; no hidden values."""
    page = (
        '<p>See <img alt="the crane"> at <input value="noon"> of <input type="hidden" value="no">.'
        '<p><math><mi>v</mi><mo>=</mo><mn>3</mn><annotation encoding="application/x-tex">no</annotation></math>'
        '<template shadowrootmode="open"><p>shown</template><template><p>no</template>'
        "<object data=a>instead </object><![CDATA[a & b]]>"
    )
    assert " ".join(" ".join(block.text.split()) for block in html_blocks(page)) == (
        "See the crane at noon of . v=3 shown instead a & b"
    )


def test_a_page_without_headings_has_its_title():
    """Otherwise the title is left out: headings say what the text is about."""
    assert html_blocks("<title>Tides &amp; locks</title><p>At six.") == [Block("Tides & locks", 1), Block("At six.")]


def test_a_heading_keeps_its_signs():
    """A sign that belongs to a word closes no heading."""
    assert [block.text for block in markdown_blocks("# C#\n\n## F# ##\n### #tag\n#\n")] == ["C#", "F#", "#tag", ""]


def test_a_quoted_value_may_have_lines():
    """They are parted as words; a line before the table may name its separator; a quote that is not closed loses nothing."""
    table = blocks_of(b'ref;note\nA-17;"Use the entrance\r\nRing; turn left\n\nBring forms"\nA-18;plain\n', "text/csv")
    assert table == [
        Block("| ref | note |\n| - | - |\n| A-17 | Use the entrance Ring; turn left Bring forms |\n| A-18 | plain |")
    ]
    assert blocks_of(b"sep=^\na^b\n1^2\n", "text/csv") == [Block("| a | b |\n| - | - |\n| 1 | 2 |")]
    open_quote = " ".join(block.text for block in blocks_of(b'a,b\n1,"x\n3,y\n', "text/csv"))
    assert set("ab1x3y") <= set(open_quote)


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
