"""Lines of a page that become paragraphs again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.documents.decoding import clean
from highwater.streams.documents.printed import entry_of, full_length, joined_lines, words_in
from highwater.streams.documents.structure import Run, sized_blocks

FULL = [f"Line {number} of a paragraph that fills the whole width" for number in range(8)]


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        ("1. Introduction . . . . . . . . 1", ("1. Introduction", 1)),
        ("Appendix .............. xii", ("Appendix", None)),
        ("A \u2026\u2026\u2026\u2026\u2026 7", ("A", 7)),
    ],
)
def test_a_line_with_dots_up_to_a_page_may_be_of_contents(line: str, entry: tuple[str, int | None]):
    """This holds for any kind of dots."""
    assert entry_of(line) == entry


@pytest.mark.parametrize(
    "line",
    [
        "And so on...",
        "a, b, ... z",
        "1.2.3.4",
        "It ends. . . . and goes on",
        "Name: ..........",
        "......... 7",
        "." * 100_000,
    ],
)
def test_other_dots_are_text(line: str):
    """An ellipsis, a version, a pause, a line to be filled in."""
    assert entry_of(line) is None


def test_a_short_line_ends_a_paragraph():
    """The next line begins another paragraph; on a page of few lines "short" is undefined."""
    lines = [*FULL, "ends here.", "-d --decompress", *FULL]
    full = full_length(lines)
    assert joined_lines(lines, full, frozenset()).count("\n\n") == 2
    assert joined_lines(["short", *FULL[:2]], full_length(["short", *FULL[:2]]), frozenset()).count("\n\n") == 0


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["a compu-", "tation, of it"], "a computation,\nof it"),
        (["they re-", "compute it"], "they re-compute\nit"),
        (["a well-", "Known name"], "a well-\nKnown name"),
        (["one -", "two"], "one -\ntwo"),
        (["compu-", "", "tation"], "compu-\n\ntation"),
        (["divi-", "sion"], "division\n"),
    ],
)
def test_a_word_divided_at_the_end_of_a_line_is_one_word(lines: list[str], text: str):
    """With its hyphen only where the document writes it so elsewhere; a dash or a name stays."""
    words = words_in(["We re-compute what computation gave"])
    assert joined_lines(lines, 0, words) == text


def test_ligatures_are_letters():
    """A reader searches for `files`."""
    assert clean("\ufb01les, e\ufb03cient") == "files, efficient"


CONTENTS = "Contents\n1 Offsets . . . . . . . . 2\nLag ............ 3\nThe end .......... iv"


def test_contents_are_not_in_the_blocks_of_a_pdf():
    """Its headings are; the words of a line once, also where one is divided."""
    pages = [CONTENTS, "Offsets\n" + "\n".join([*FULL, "The end of the compu-", "tation.", "More"]), "2 Lag\nIt grows."]
    blocks = [block for page in sized_blocks([[Run(page, 10.0)] for page in pages]) for block in page]
    text = [block.text for block in blocks if block.left_out is None]
    assert [(block.left_out, block.text) for block in blocks if block.left_out is not None] == [
        ("contents", line) for line in CONTENTS.split("\n")[1:]
    ]
    assert "The end of the computation." in " ".join(" ".join(text).split())
    assert not any("1 Offsets" in one for one in text)


@pytest.mark.parametrize(
    "pages",
    [
        ["Prices\nCoffee ............ 30\nRoll ............ 85", "Coffee\nFrom Kenya.", "Roll\nWith herring."],
        ["Coffee ............ 1\nRoll ............ 2\nTea ............ 3\nBun ............ 4", "Coffee", "Tea"],
        ["Offsets ............ 1", "Offsets"],
        ["Name: ............\nSignature ................", "Name:\nSignature"],
    ],
    ids=["prices", "few headings", "one line", "a form"],
)
def test_dots_that_lead_to_no_page_of_a_heading_are_text(pages: list[str]):
    """The numbers of entries are pages of their headings, at one distance, for most of them."""
    blocks = [block for page in sized_blocks([[Run(page, 10.0)] for page in pages]) for block in page]
    assert all(block.left_out is None for block in blocks)


@given(
    st.lists(
        st.lists(st.sampled_from(["Log", "1", "2", "Log ...... 1", "Lag ...... 2", "Page 2", "Lag"]), max_size=5),
        max_size=6,
    )
)
def test_no_line_of_a_page_is_lost(pages: list[list[str]]):
    """Each is in the text or left out with a reason, once."""
    blocks = [block for page in sized_blocks([[Run("\n".join(page), 10.0)] for page in pages]) for block in page]
    lines = [line for block in blocks for line in block.text.split("\n") if line]
    assert sorted(lines) == sorted(line for page in pages for line in page)
