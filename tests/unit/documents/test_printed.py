"""Lines of a page that become paragraphs again."""

from __future__ import annotations

import pytest

from highwater.streams.documents.printed import full_length, is_of_contents, joined_lines, words_in
from highwater.streams.documents.structure import Run, clean, sized_blocks

FULL = [f"Line {number} of a paragraph that fills the whole width" for number in range(8)]


@pytest.mark.parametrize(
    "line", ["1. Introduction . . . . . . . . 1", "Appendix .............. xii", "A \u2026\u2026\u2026\u2026\u2026 7"]
)
def test_a_line_with_dots_up_to_a_page_is_of_contents(line: str):
    """This holds for any kind of dots."""
    assert is_of_contents(line)


@pytest.mark.parametrize("line", ["And so on...", "a, b, ... z", "1.2.3.4", "It ends. . . . and goes on"])
def test_other_dots_are_text(line: str):
    """An ellipsis, a version, a pause."""
    assert not is_of_contents(line)


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


def test_contents_are_not_in_the_blocks_of_a_pdf():
    """Its headings are; the words of a line once, also where one is divided."""
    page = ["Offsets . . . . . . . . 2", "Lag . . . . . . . . 3", *FULL, "The end of the compu-", "tation.", "More"]
    blocks = [block.text for block in sized_blocks([[Run("\n".join(page), 10.0)]])]
    assert not any("Offsets" in text for text in blocks)
    assert "The end of the computation." in " ".join(" ".join(blocks).split())
