"""The answers of a reranking service, in either form."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.connectors.models.reranker import RerankError, RerankingService, scores_of
from highwater.schemas.errors import ConfigurationError


@pytest.mark.parametrize(
    "answer",
    [
        [{"index": 1, "score": 0.9}, {"index": 0, "score": 0.25, "text": "a"}],
        {"model": "m", "results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.25}]},
    ],
)
def test_scores_are_in_the_order_of_the_texts(answer: Any):
    """As text-embeddings-inference answers, and as Cohere and Jina do."""
    assert scores_of(answer, 2) == [0.25, 0.9]


def test_logits_are_taken_as_probabilities():
    """Some services give scores as the model has them."""
    assert scores_of([{"index": 0, "score": 0.0}, {"index": 1, "score": 2.0}], 2) == [0.5, pytest.approx(0.8807970)]
    assert scores_of([{"index": 0, "score": -1e300}, {"index": 1, "score": 1e300}], 2) == [0.0, 1.0]


@pytest.mark.parametrize(
    "answer",
    [
        None, "no", {}, {"results": {}}, [], [{"index": 0, "score": 1.0}], [{"index": 0}, {"index": 1}], [1, 2],
        [{"index": 0, "score": "1"}, {"index": 1, "score": 1}], [{"index": 0, "score": 1}, {"index": 2, "score": 1}],
        [{"index": 0, "score": float("nan")}, {"index": 1, "score": 1}],
    ],
)  # fmt: skip
def test_anything_else_is_no_answer(answer: Any):
    """One number for each text, or none at all."""
    with pytest.raises(RerankError):
        scores_of(answer, 2)


def test_an_address_that_is_none_is_refused():
    """At the start, not at the first search."""
    with pytest.raises(ConfigurationError, match="HIGHWATER_RERANK_BASE_URL"):
        RerankingService("reranker:8080", None, None)
