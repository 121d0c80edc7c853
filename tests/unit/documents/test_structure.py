"""Documents that are text: what a reader sees of them, in blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.documents.chunking import Block
from highwater.streams.documents.structure import (
    UnreadableDocumentError,
    decoded,
    html_blocks,
    html_charset,
    markdown_blocks,
    plain_blocks,
)


def test_paragraphs_stand_apart_by_empty_lines():
    """Lines of a paragraph stay together."""
    assert plain_blocks("a\nb\n\n \n\nc") == [Block("a\nb"), Block("c")]


def test_markdown_has_headings_and_code():
    """Both kinds of headings; what is in a fence is no heading, and empty lines do not break it."""
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
        Block("a\n  b"),
        Block("1 2"),
        Block("six"),
    ]


@given(st.text(st.sampled_from("<>/ ab!-&;\"'=hpre1"), max_size=200))
def test_no_html_breaks_the_reader(text: str):
    """Whatever is written, blocks come of it."""
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
    """Line ends are one kind, and what cannot be shown is white space."""
    assert decoded(raw) == text


@pytest.mark.parametrize("raw", [b"\xff\xff\xff", "é".encode("latin-1"), b"a\0b"])
def test_what_is_not_text_is_refused(raw: bytes):
    """Rather than guessed at."""
    with pytest.raises(UnreadableDocumentError):
        decoded(raw)


def test_html_names_its_charset():
    """In either form; one that nobody knows makes the document unreadable."""
    assert html_charset(b"<meta charset='windows-1251'>") == "windows-1251"
    assert html_charset(b'<meta http-equiv=content-type content="text/html; charset=koi8-r">') == "koi8-r"
    assert html_charset(b"<p>") is None
    assert decoded("Ж".encode("koi8-r"), "koi8-r") == "Ж"
    with pytest.raises(UnreadableDocumentError):
        decoded(b"a", "no-such")
