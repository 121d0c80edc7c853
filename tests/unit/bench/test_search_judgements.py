"""The verdicts on what searches of the judged set found."""

from __future__ import annotations

from tests.bench.search_judgements import text_key, verdicts
from tests.bench.search_quality import Judged, _figures, questions


def test_each_question_has_been_read_for():
    """Every question has verdicts, of texts that are known by their keys; none is yes and no."""
    found = verdicts()
    assert list(found) == [question for question, _ in questions()]
    for one in found.values():
        assert not one.yes & one.no
        assert {len(key) for key in one.yes | one.no} <= {len(text_key("title", "content"))}


def test_what_was_read_and_answers_counts_beside_what_was_named():
    """And what nobody read is counted as unread: not as an answer."""
    made = Judged("judged", [""] * 4, [""] * 4, ["q"], [frozenset([0])], [frozenset([0, 2])], [frozenset([0, 1, 2])])
    values = {one["name"].rpartition("questions, ")[2]: one["value"] for one in _figures(made, "s", [[3, 2, 1, 0]])[4:]}
    assert values == {"top 1": 0.0, "top 5": 1.0, "top 10": 1.0, "MRR": 0.5, "unread": 0.25}
    assert _figures(made, "s", [[3, 2, 1, 0]])[3]["value"] == 0.25
