"""The verdicts on what searches of the judged set found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from highwater.connectors.models.reranker import RerankError
from tests.bench.search_judgements import text_key, verdicts
from tests.bench.search_quality import Judged, _figures, questions, reordered
from tests.unit.chunks.test_reranking import PASSPORT, Scores, result


def test_each_question_has_been_read_for():
    """Every question has verdicts, of texts that are known by their keys; none is yes and no."""
    found = verdicts()
    assert list(found) == [question for question, _ in questions()]
    for one in found.values():
        assert not one.yes & one.no
        assert {len(key) for key in one.yes | one.no} <= {len(text_key("title", "content"))}


def test_what_was_read_and_answers_counts_beside_what_was_named():
    """An unread text counts as unread, not as an answer."""
    made = Judged("judged", [""] * 4, [""] * 4, ["q"], [frozenset([0])], [frozenset([0, 2])], [frozenset([0, 1, 2])])
    values = {one["name"].rpartition("questions, ")[2]: one["value"] for one in _figures(made, "s", [[3, 2, 1, 0]])[4:]}
    assert values == {"top 1": 0.0, "top 5": 1.0, "top 10": 1.0, "MRR": 0.5, "unread": 0.25}
    assert _figures(made, "s", [[3, 2, 1, 0]])[3]["value"] == 0.25


async def test_a_question_that_is_not_reranked_keeps_its_order():
    """A reranker that takes too long for one question does not end the measurement: the question is counted."""

    class TooSlow:
        name = "too slow"

        async def scores(self, question: str, texts: Sequence[str]) -> list[float]:
            """After the time is over."""
            raise RerankError

        async def close(self) -> None:
            """There is nothing to close."""

    found = [replace(result("text", 0.5), chunk_no=number) for number in (7, 3)]
    assert await reordered(TooSlow(), "q", found, PASSPORT) == ([7, 3], False)
    assert await reordered(Scores({"text": 0.5}), "q", found, PASSPORT) == ([7, 3], True)
