"""Reorders results by a reranker's scores together with their own, if a reranker is configured.

Invariant: age counts as in every search; the reranker's score is a share of the similarity. Without its scores the
results keep their own order, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from highwater.connectors.models.reranker import Reranker, RerankError
from highwater.connectors.retrieval.results import Result
from highwater.streams.chunks.scoring import final_score, is_past_ttl

# Results that are reranked when fewer are requested. With 30 the local cross-encoder found no more of the judged answers
# among the first ten; each text costs the reranker some milliseconds.
RERANKED_MIN = 20
# The reranker's share of a similarity. Chosen on every second question of the judged set with the local cross-encoder
# (docs/benchmarks/search.md): it brings answers to the first place and into the first ten, not more of them into the
# first five.
RERANK_SHARE = 0.4


class Ranking(StrEnum):
    """How the results of a search are ordered."""

    SCORES = "scores"
    RERANKER = "reranker"
    RERANKER_UNAVAILABLE = "reranker_unavailable"


async def reranked(
    reranker: Reranker, question: str, results: Sequence[Result], passport: Any
) -> tuple[Sequence[Result], Ranking]:
    """Return all results in a new order, each with its score by the reranker; unchanged if that does not answer.

    Args:
        reranker: a service, or the local model.
        question: the text of the search.
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
        by_reranker = final_score(score, one.decay, passport["alpha"], passport["beta"], is_too_old=is_too_old)
        return (1 - RERANK_SHARE) * one.final + RERANK_SHARE * by_reranker

    ordered = sorted(zip(results, scores, strict=True), key=lambda pair: -worth(*pair))  # stable: ties keep their order
    return [replace(one, rerank_score=score) for one, score in ordered], Ranking.RERANKER
