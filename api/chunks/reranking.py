"""Results in the order that a reranking service gives them, where one is configured.

Invariant: age counts as in every search; only what stands for similarity is the service's. Without its answer the results stay in
the order of their scores, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from highwater.connectors.models.reranker import Reranker, RerankError
from highwater.connectors.retrieval.search import Result
from highwater.streams.chunks.scoring import final_score, is_past_ttl

# Results that are put in order where fewer are asked for. Of the judged set the answer stands among the first 20 in .91 of the
# cases, among the first 5 in .77; each text costs the service some milliseconds.
RERANKED_MIN = 30


class Ranking(StrEnum):
    """What the order of an answer follows from."""

    SCORES = "scores"
    RERANKER = "reranker"
    RERANKER_UNAVAILABLE = "reranker_unavailable"


async def reranked(
    reranker: Reranker, question: str, results: Sequence[Result], passport: Any
) -> tuple[Sequence[Result], Ranking]:
    """All of the results, put in order anew, each with its score of the service; as they are where that does not answer.

    Args:
        reranker: the service.
        question: what was asked.
        results: the best first.
        passport: the row of their namespace.
    """
    texts = [f"{one.title}\n\n{one.content}" if one.title else one.content for one in results]
    try:
        scores = await reranker.scores(question, texts)
    except RerankError:
        return results, Ranking.RERANKER_UNAVAILABLE

    def worth(one: Result, score: float) -> float:
        is_too_old = is_past_ttl(one.age_days, passport["ttl_days"])
        return final_score(score, one.decay, passport["alpha"], passport["beta"], is_too_old=is_too_old)

    ordered = sorted(
        zip(results, scores, strict=True), key=lambda pair: -worth(*pair)
    )  # stable: ties stay as they were
    return [replace(one, rerank_score=score) for one, score in ordered], Ranking.RERANKER
