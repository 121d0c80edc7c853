"""The requirements: each has its line, a place that decides it and tests that prove it; each marker names one that exists."""

from __future__ import annotations

import pytest

from tests import ROOT
from tests.requirements import NUMBERS, PAGE, Line, make_page, numbers_of, read_lines, read_marked, read_proofs

LINES = read_lines()
PROOFS = read_proofs()


def test_every_number_has_its_line():
    """All 195, each once, in the order of the specification."""
    assert [line.number for line in LINES] == NUMBERS
    assert len(NUMBERS) == 195


def test_a_requirement_is_one_sentence_of_its_own():
    """Each has a text, and no two have the same."""
    texts = [line.text for line in LINES]
    assert all(text.endswith(".") for text in texts)
    assert len(set(texts)) == len(texts)


def test_a_requirement_is_decided_somewhere():
    """Each names files of the repository."""
    assert [line.number for line in LINES if not line.places] == []
    missing = [(line.number, place) for line in LINES for place in line.places if not (ROOT / place).is_file()]
    assert missing == []


def test_a_requirement_is_proved_or_says_why_not():
    """Each has a test, or a reason why it has none; none has both."""
    proved = {proof.number for proof in PROOFS}
    assert [line.number for line in LINES if (line.number in proved) == bool(line.unproved)] == []


def test_a_marker_names_a_requirement():
    """No marker has a number that does not exist."""
    assert [proof for proof in PROOFS if proof.number not in NUMBERS] == []


def test_every_marker_is_counted():
    """A marker stands on a test, with its numbers as texts: nothing that the page would miss."""
    paths = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "requirements.py"]
    trees = [read_marked(path) for path in paths if path.name != "test_requirements.py"]
    everywhere = [number for tree in trees for number in numbers_of([tree])]  # type: ignore[list-item]
    assert len(everywhere) == len(PROOFS)


def test_the_page_is_current():
    """`docs/requirements.md` is what `python -m tests.requirements` writes."""
    assert PAGE.read_text(encoding="utf-8") == make_page(LINES, PROOFS)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (Line("R0.1", "It is.", ("streams/due.py",), ""), "| R0.1 | It is. | [streams/due.py](../streams/due.py) | "),
        (Line("R0.2", "It is.", (), "A reason."), "| R0.2 | It is. |  | Not proved: A reason. |"),
    ],
)
def test_a_row(line: Line, row: str):
    """Text, place and tests; without a test the reason."""
    assert row in make_page([line], [])
