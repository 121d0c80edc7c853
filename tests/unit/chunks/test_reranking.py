"""The order of results in which a reranker counts beside their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from highwater.api.chunks.reranking import Ranking, reranked
from highwater.connectors.models.reranker import RerankError
from highwater.connectors.retrieval.results import Result
from highwater.streams.chunks.scoring import final_score
from highwater.streams.chunks.states import Temperature

PASSPORT = {"alpha": 0.8, "beta": 0.2, "ttl_days": 365.0}


class Scores:
    """A reranker with scores by text."""

    name = "scores"

    def __init__(self, by_text: dict[str, float]) -> None:
        self.by_text = by_text

    async def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        """Those that are known; without any it fails."""
        if not self.by_text:
            raise RerankError
        return [self.by_text[text] for text in texts]

    async def close(self) -> None:
        """There is nothing to close."""


def result(content: str, similarity: float, decay: float = 1.0) -> Result:
    """A result that has this text."""
    known: Any = dict.fromkeys(("title", "url", "published_ms"))
    known |= {
        "ns": "n",
        "slot": "s",
        "source_id": "a",
        "chunk_no": 0,
        "created_ms": 0,
        "updated_ms": 0,
        "age_days": 1.0,
    }
    known |= {"temperature": Temperature.HOT, "is_stale": False, "position": "t/0/0", "content": content}
    known |= {"similarity": similarity, "cosine": similarity, "text_score": similarity, "decay": decay}
    known["final"] = final_score(similarity, decay, PASSPORT["alpha"], PASSPORT["beta"])
    return Result(**known)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({"near": 0.5, "far": 0.9}, ["near", "far"]),  # 0.6 * 0.9 + 0.4 * 0.5 > 0.6 * 0.5 + 0.4 * 0.9
        ({"near": 0.1, "far": 0.9}, ["far", "near"]),
        ({}, ["near", "far"]),
    ],
)
async def test_neither_similarity_nor_the_reranker_decides_alone(scores: dict[str, float], expected: list[str]):
    """The reranker's score is 0.4 of what stands for similarity; without it the order stays, and the answer says so."""
    given = [result("near", 0.9), result("far", 0.5)]
    ordered, ranking = await reranked(Scores(scores), "q", given, PASSPORT)
    assert [one.content for one in ordered] == expected
    assert ranking is (Ranking.RERANKER if scores else Ranking.RERANKER_UNAVAILABLE)
    assert {one.content: one.rerank_score for one in ordered} == {"near": scores.get("near"), "far": scores.get("far")}


async def test_age_counts_as_without_a_reranker():
    """If two results are equal by both scores, the younger one is first."""
    given = [result("old", 0.5, decay=0.1), result("young", 0.5)]
    ordered, _ = await reranked(Scores({"old": 0.5, "young": 0.5}), "q", given, PASSPORT)
    assert [one.content for one in ordered] == ["young", "old"]
    ordered, _ = await reranked(Scores({"old": 0.9, "young": 0.5}), "q", given, PASSPORT)
    assert [one.content for one in ordered] == ["young", "old"]
