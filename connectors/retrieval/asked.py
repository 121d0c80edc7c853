"""The vector of a question, made once for all that it is compared with.

Invariant: nobody waits long for it. While the embedder is unavailable there is none, and words alone decide.
"""

from __future__ import annotations

import asyncio

from highwater.connectors.models.embedding_calls import CountedEmbedder, Work
from highwater.connectors.models.embeddings import EmbeddingError
from highwater.schemas.errors import UnavailableError
from highwater.streams.telemetry import get_log

# A vector of a service takes a tenth of that; words find most of what is asked without it.
_VECTOR_SECONDS_MAX = 5.0

_log = get_log("chunk-context")


class AskedVector:
    """The vector of a text, which is made when it is first asked for. What it costs counts for the work it is for."""

    def __init__(self, embedder: CountedEmbedder | None, text: str, work: Work) -> None:
        self._embedder = embedder
        self._text = text
        self._work = work
        self._made: bytes | None = None
        self._is_asked = False

    @property
    def basis_id(self) -> str | None:
        """The model that makes it."""
        return None if self._embedder is None else self._embedder.basis_id

    async def of_model(self, basis_ids: set[str]) -> bytes | None:
        """The vector, if one of these models makes it and does so now."""
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
