"""The client of a service that scores how well texts answer a question: text-embeddings-inference, or Cohere and Jina.

Invariant: a search never waits long for it, and never fails because of it. Its answer is checked: one score for each
text, or none at all. After a failure it is not called for some seconds, so that an unavailable service does not slow
every search.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import orjson

from highwater.schemas.errors import ConfigurationError, HighwaterError
from highwater.streams.clock import monotonic_seconds
from highwater.streams.settings import Settings
from highwater.streams.telemetry import MODEL_CALLS, get_log

# A search takes some milliseconds without it; nobody waits longer than this for a better order. A GPU takes a tenth of
# it.
CALL_SECONDS_MAX = 2.0
REST_SECONDS = 10.0
# Rerankers read some 512 tokens of a text; the beginning of a chunk shows what it is about.
TEXT_CHARACTERS_MAX = 2_000
# Scores of 100 texts take 10 kB; some services send the texts back, at most 4 octets per letter.
_ANSWER_BYTES_MAX = 1 << 20

_log = get_log("reranker")


class RerankError(HighwaterError):
    """The reranking service did not answer in time, or its answer was invalid. The results are in the order of their scores."""


class Reranker(Protocol):
    """Scores how well texts answer a question."""

    name: str
    """Part of what an answer depends on."""

    async def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        """Return how well each text answers the question, from 0 to 1.

        Raises:
            RerankError: there are no scores in time.
        """

    async def close(self) -> None:
        """Release what it holds."""


class RerankingService:
    """The client of one service."""

    def __init__(self, url: str, key: str | None, model: str | None) -> None:
        """`model` None: the service has one model, and speaks the protocol of text-embeddings-inference.

        Raises:
            ConfigurationError: the address is invalid.
        """
        if urlsplit(url).scheme not in ("http", "https"):
            raise ConfigurationError("HIGHWATER_RERANK_BASE_URL is not an http:// or https:// address")
        from highwater.connectors.bounded import bounded_client  # noqa: PLC0415 - only who has a service needs it

        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._client = bounded_client(url, seconds_max=CALL_SECONDS_MAX, bytes_max=_ANSWER_BYTES_MAX, headers=headers)
        self._url = f"{url.rstrip('/')}/rerank"
        self._model = model
        self._rests_until = float("-inf")
        self.name = f"{self._url} {model}"

    async def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        """Return how well each text answers the question, from 0 to 1.

        Raises:
            RerankError: there are no scores in time.
        """
        if not texts:
            return []
        if monotonic_seconds() < self._rests_until:
            raise RerankError("the service failed some seconds ago")
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                found = scores_of(await self._asked(question, texts), len(texts))
        except (RerankError, TimeoutError) as error:
            MODEL_CALLS.labels("rerank", "failed").inc()
            self._rests_until = monotonic_seconds() + REST_SECONDS
            reason = str(error) or f"no answer within {CALL_SECONDS_MAX:g} s"
            _log.warning("reranker_failed", reason=reason, asked_again_in_seconds=REST_SECONDS)
            raise RerankError(reason) from error
        MODEL_CALLS.labels("rerank", "done").inc()
        return found

    async def _asked(self, question: str, texts: Sequence[str]) -> Any:
        import httpx2  # noqa: PLC0415 - as above

        cut = [text[:TEXT_CHARACTERS_MAX] for text in texts]
        try:
            response = await self._client.post(self._url, json=self._body(question, cut))
            if response.status_code != httpx2.codes.OK:
                raise RerankError(f"the service answered with status {response.status_code}")
            return orjson.loads(response.content)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:  # its text may contain the address
            raise RerankError(f"the service cannot be reached: {type(error).__name__}") from error
        except orjson.JSONDecodeError as error:
            raise RerankError("the service returned a response that is not JSON") from error

    def _body(self, question: str, texts: Sequence[str]) -> dict[str, Any]:
        if self._model is None:
            return {"query": question, "texts": texts, "truncate": True}
        return {"model": self._model, "query": question, "documents": texts, "return_documents": False}

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()


def scores_of(answer: Any, count: int) -> list[float]:
    """Return the scores of an answer in either form, in the order of the texts; numbers outside 0 to 1 (logits) as
    probabilities.

    Raises:
        RerankError: it does not have exactly one number for each text.
    """
    rows = answer.get("results") if isinstance(answer, dict) else answer
    found: dict[int, float] = {}
    for row in rows if isinstance(rows, list) else ():
        index, score = (
            (row.get("index"), row.get("relevance_score", row.get("score"))) if isinstance(row, dict) else (None, None)
        )
        if not isinstance(index, int) or not isinstance(score, int | float) or not math.isfinite(score):
            raise RerankError("the service returned a value that is not a score")
        found[index] = float(score)
    if sorted(found) != list(range(count)):
        raise RerankError(f"the service returned {len(found)} scores for {count} texts")
    ordered = [found[place] for place in range(count)]
    return ordered if all(0 <= score <= 1 for score in ordered) else [probability(score) for score in ordered]


def probability(logit: float) -> float:
    """Convert a score of a model to a number from 0 to 1."""
    return (1 + math.tanh(logit / 2)) / 2


def open_service(settings: Settings) -> RerankingService | None:
    """Return the configured service, if there is one.

    Raises:
        ConfigurationError: the address is invalid.
    """
    if settings.rerank_url is None:
        return None
    return RerankingService(settings.rerank_url, settings.rerank_key, settings.rerank_model)
