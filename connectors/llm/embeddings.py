"""The embedding port: texts to vectors through an OpenAI-compatible service, or by the built-in embedder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from openai import APIConnectionError, APIStatusError, APITimeoutError, AsyncOpenAI, OpenAIError

from schemas.errors import HighwaterError, UnavailableError
from streams.feeds.embedding import TextEmbedder
from streams.retry import MODEL_CALL
from streams.settings import Settings
from streams.telemetry import MODEL_CALLS

# A call that takes longer is given up and repeated; the wait for an embedding is bounded elsewhere.
CALL_SECONDS_MAX = 30.0
# Services take about 8,000 tokens; a text's beginning carries what it is about.
_TEXT_CHARACTERS_MAX = 8_000


class Embedder(Protocol):
    """Texts to vectors: little-endian float32 of unit length."""

    basis_id: str

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Vectors in order."""


class BuiltInEmbedder:
    """The built-in embedder, unfitted: its vectors stay the same whatever the feeds do with theirs."""

    def __init__(self) -> None:
        self._made = TextEmbedder()
        self.basis_id = self._made.basis_id

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Vectors in order."""
        return [row.astype("<f4").tobytes() for row in self._made.embed(texts)]


class EmbeddingError(HighwaterError):
    """The embedding service answered something that is not the vectors asked for. Check its model and dimensions."""


class RemoteEmbedder:
    """Vectors of `dimensions` float32, unit length, from a service."""

    def __init__(self, url: str, key: str | None, *, model: str, dimensions: int) -> None:
        self.model = model
        self._dimensions = dimensions
        self.basis_id = f"{model}@{dimensions}"
        self._client = AsyncOpenAI(base_url=url, api_key=key or "none", timeout=CALL_SECONDS_MAX, max_retries=0)

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Little-endian float32 vectors of texts, in order.

        Raises:
            UnavailableError: the service does not answer after all attempts.
            EmbeddingError: it answers, but not with the vectors asked for.
        """
        attempt = 1
        while True:
            try:
                return await self._call([text[:_TEXT_CHARACTERS_MAX] or " " for text in texts])
            except (APIConnectionError, APITimeoutError, APIStatusError, UnavailableError) as error:
                wait_ms = MODEL_CALL.wait_ms(attempt)
                if wait_ms is None:
                    raise UnavailableError(f"the embedding service fails: {error}") from error
                attempt += 1
                await asyncio.sleep(wait_ms / 1000)

    async def _call(self, texts: Sequence[str]) -> list[bytes]:
        try:
            answer = await self._client.embeddings.create(model=self.model, input=list(texts), encoding_format="float")
            vectors = np.asarray([item.embedding for item in answer.data], dtype=np.float32)
        except (APIConnectionError, APITimeoutError, APIStatusError):
            MODEL_CALLS.labels("embedding", "failed").inc()
            raise
        except (OpenAIError, ValueError, TypeError, AttributeError) as error:
            MODEL_CALLS.labels("embedding", "failed").inc()
            raise EmbeddingError(f"the embedding service answered something else: {error}") from error
        if vectors.shape != (len(texts), self._dimensions) or not np.isfinite(vectors).all():
            MODEL_CALLS.labels("embedding", "failed").inc()
            raise EmbeddingError(
                f"the embedding service gave vectors of shape {vectors.shape}, not {(len(texts), self._dimensions)}; "
                "set HIGHWATER_EMBEDDING_DIMENSIONS to the model's"
            )
        MODEL_CALLS.labels("embedding", "done").inc()
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return [row.astype("<f4").tobytes() for row in vectors / np.where(lengths == 0, 1, lengths)]


def open_remote_embedder(settings: Settings) -> RemoteEmbedder | None:
    """The configured service of embeddings, if there is one."""
    if not settings.embeddings_url:
        return None
    return RemoteEmbedder(
        settings.embeddings_url,
        settings.embeddings_key,
        model=settings.embeddings_model,
        dimensions=settings.embedding_dimensions,
    )


def open_embedder(settings: Settings) -> Embedder:
    """What makes vectors outside feeds: the configured service, else the built-in embedder."""
    return open_remote_embedder(settings) or BuiltInEmbedder()
