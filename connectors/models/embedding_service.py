"""The client of an embedding service (OpenAI-compatible).

Invariant: calls are repeated a few times; results are checked, and have unit length. Only this module imports the
service's client library, which takes half a second to load (`embeddings.py` works without it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

import numpy as np
from openai import APIConnectionError, APIStatusError, APITimeoutError, AsyncOpenAI, OpenAIError
from openai.types import CreateEmbeddingResponse

from highwater.connectors.bounded import bounded_client
from highwater.connectors.models.embeddings import Embedded, Embedder, EmbeddingError
from highwater.schemas.errors import ConfigurationError, ModelUnavailableError, UnavailableError
from highwater.streams.models.tokens import count_tokens
from highwater.streams.retry import MODEL_CALL
from highwater.streams.telemetry import MODEL_CALLS

# With its repetitions; the wait for an embedding is limited elsewhere.
CALL_SECONDS_MAX = 30.0
# A vector of 4,096 numbers of 25 letters is 100 kB, and a call has up to 64 texts.
RESPONSE_BYTES_MAX = 16 << 20
# Services accept about 8,000 tokens; the beginning of a text shows what it is about.
_TEXT_CHARACTERS_MAX = 8_000


class RemoteEmbedder:
    """Vectors of `dimensions` float32, unit length, from a service."""

    # It computes while the next texts are read and the last vectors are stored.
    calls_at_once = 4
    is_paid = True

    def __init__(self, url: str, key: str | None, *, model: str, dimensions: int) -> None:
        """Create it without opening a connection.

        Raises:
            ConfigurationError: the address is invalid.
        """
        if urlsplit(url).scheme not in ("http", "https"):
            raise ConfigurationError("EMBEDDINGS_BASE_URL is not an http:// or https:// address")
        self.model = model
        self._dimensions = dimensions
        self.basis_id = f"{model}@{dimensions}"
        self._client = AsyncOpenAI(
            base_url=url,
            api_key=key or "none",
            timeout=CALL_SECONDS_MAX,
            max_retries=0,
            http_client=bounded_client(url, seconds_max=CALL_SECONDS_MAX, bytes_max=RESPONSE_BYTES_MAX),
        )

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Little-endian float32 vectors of texts, in order.

        Raises:
            ModelUnavailableError: the service does not answer after all attempts.
            EmbeddingError: it answers, but not with the requested vectors.
        """
        return (await self.embed_counted(texts)).vectors

    async def embed_counted(self, texts: Sequence[str]) -> Embedded:
        """Return the same with the token count of the service, or an estimate without one; errors as of `embed`."""
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                return await self._embedded([text[:_TEXT_CHARACTERS_MAX] or " " for text in texts])
        except TimeoutError as error:
            raise ModelUnavailableError(
                f"the embedding service fails: no answer within {CALL_SECONDS_MAX:g} s"
            ) from error

    async def _embedded(self, texts: Sequence[str]) -> Embedded:
        attempt = 1
        while True:
            try:
                return await self._call(texts)
            except (APIConnectionError, APITimeoutError, APIStatusError, UnavailableError) as error:
                wait_ms = MODEL_CALL.wait_ms(attempt)
                if wait_ms is None:
                    raise ModelUnavailableError(f"the embedding service fails: {error}") from error
                attempt += 1
                await asyncio.sleep(wait_ms / 1000)

    def former(self) -> Sequence[Embedder]:
        """Return none: each model of a service is another name."""
        return []

    async def _call(self, texts: Sequence[str]) -> Embedded:
        try:
            answer = await self._client.embeddings.create(model=self.model, input=list(texts), encoding_format="float")
            vectors = np.asarray([item.embedding for item in answer.data], dtype=np.float32)
        except (APIConnectionError, APITimeoutError, APIStatusError):
            MODEL_CALLS.labels("embedding", "failed").inc()
            raise
        except (OpenAIError, ValueError, TypeError, AttributeError) as error:
            MODEL_CALLS.labels("embedding", "failed").inc()
            raise EmbeddingError(f"the embedding service returned an unexpected response: {error}") from error
        if vectors.shape != (len(texts), self._dimensions) or not np.isfinite(vectors).all():
            MODEL_CALLS.labels("embedding", "failed").inc()
            raise EmbeddingError(
                f"the embedding service returned vectors of shape {vectors.shape}, not {(len(texts), self._dimensions)}; "
                "set HIGHWATER_EMBEDDING_DIMENSIONS to the model's"
            )
        MODEL_CALLS.labels("embedding", "done").inc()
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        made = [row.astype("<f4").tobytes() for row in vectors / np.where(lengths == 0, 1, lengths)]
        return Embedded(made, _tokens_of(answer, texts))


def _tokens_of(answer: CreateEmbeddingResponse, texts: Sequence[str]) -> int:
    told = getattr(answer.usage, "prompt_tokens", None)  # some services omit the usage
    return told if isinstance(told, int) and told >= 0 else sum(map(count_tokens, texts))
