"""The lead of a text."""

from __future__ import annotations

import pytest

from highwater.streams.models.leads import LEAD_CHARACTERS_MAX, lead_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("os > os.path.islink\n\nTest whether a path\nis a symbolic link. False on\nother systems.",
         "os.path.islink: Test whether a path is a symbolic link."),
        ("Backups\n\nOnce a night\n\nThe rest.", "Backups: Once a night"),  # a paragraph without a full stop
        ("Versions\n\nTake 3.11.4 or later! Not 3.12.", "Versions: Take 3.11.4 or later!"),  # a dot within a word
        ("Words\n\ne.g. a word is one. Two.", "Words: e.g. a word is one."),
        ("FAQ > Does it work offline?\n\nYes, it does so. No key.", "Does it work offline? Yes, it does so."),
        ("  Spaces \n \t\n Around a title are left out.", "Spaces: Around a title are left out."),
    ],
)  # fmt: skip
def test_a_lead_is_the_last_title_and_the_first_sentence(text: str, expected: str):
    """The last title of the path of headings, and the sentence in one line."""
    assert lead_of(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "where is the executable of a command",
        "The first paragraph is a sentence.\n\nSo it is no title.",
        "Two lines\nare no title\n\nThe text begins here.",
        f"{'word ' * 50}\n\nThe text begins here.",  # too long for a title
        "Only a title\n\n",
        "Arguments\n\n- one of them is first.",
        "Table\n\n| a | b is a column |",
        "Example\n\n>>> print('a sentence to print.')",
        "Section\n\nParameters\n----------\nx is a number.",
        "Short\n\nNo argument.",
        "List\n\nThese are all of them:",
        f"Long\n\n{'word ' * 100}",
    ],
)  # fmt: skip
def test_what_has_no_lead(text: str):
    """A question, a text without a title, and one that does not begin with a sentence."""
    assert lead_of(text) == ""


def test_the_work_is_bounded():
    """A megabyte without a full stop, and one that has only the first sentence in common with a short one."""
    assert lead_of("Title\n\n" + "a " * (1 << 19)) == ""
    sentence = "One sentence is read. "
    assert lead_of("Title\n\n" + sentence + "a " * (1 << 19)) == f"Title: {sentence.strip()}"
    assert len(lead_of("T\n\n" + "word " * 59 + "end. " + "word " * 99)) <= LEAD_CHARACTERS_MAX + len("T: ")
