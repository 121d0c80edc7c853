"""The vector of a question, computed once for all comparisons.

Invariant: no caller waits long for it. While the embedder is unavailable there is no vector, and only words are
compared.
"""

from __future__ import annotations

import asyncio

from highwater.connectors.models.embedding_calls import CountedEmbedder, Work
from highwater.connectors.models.embeddings import EmbeddingError
from highwater.schemas.errors import UnavailableError
from highwater.streams.telemetry import get_log

# A service computes a vector in a tenth of that; words find most answers without it.
_VECTOR_SECONDS_MAX = 5.0

_log = get_log("chunk-context")


class QuestionVector:
    """The vector of a text, computed on first use. Its cost is attributed to the work it is for."""

    def __init__(self, embedder: CountedEmbedder | None, text: str, work: Work) -> None:
        self._embedder = embedder
        self._text = text
        self._work = work
        self._made: bytes | None = None
        self._is_asked = False

    @property
    def basis_id(self) -> str | None:
        """Return the model that computes it."""
        return None if self._embedder is None else self._embedder.basis_id

    async def of_model(self, basis_ids: set[str]) -> bytes | None:
        """Return the vector, if one of these models computes it and is available now."""
        if self._embedder is None or self._embedder.basis_id not in basis_ids:
            return None
        if not self._is_asked:
            self._is_asked = True
            try:
                async with asyncio.timeout(_VECTOR_SECONDS_MAX):
                    self._made = await self._embedder.embed(self._text, self._work)
            except (UnavailableError, EmbeddingError, TimeoutError) as error:
                _log.warning("searched_by_words_alone", reason=str(error)[:300] or type(error).__name__)
        return self._made
