"""The embedding port: texts to vectors through an OpenAI-compatible service, or by the built-in embedder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from highwater.schemas.errors import HighwaterError
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.settings import Settings

if TYPE_CHECKING:
    from highwater.connectors.models.embedding_service import RemoteEmbedder


class Embedder(Protocol):
    """Texts to vectors: little-endian float32 of unit length. So many calls at once make it faster, and no more."""

    basis_id: str
    calls_at_once: int

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Vectors in order."""


class BuiltInEmbedder:
    """The built-in embedder, unfitted: its vectors stay the same whatever the feeds do with theirs."""

    calls_at_once = 1

    def __init__(self) -> None:
        self._made = TextEmbedder()
        self.basis_id = self._made.basis_id

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Vectors in order."""
        return [row.astype("<f4").tobytes() for row in self._made.embed(texts)]


class EmbeddingError(HighwaterError):
    """The embedding service answered something that is not the vectors asked for. Check its model and dimensions."""


def open_remote_embedder(settings: Settings) -> RemoteEmbedder | None:
    """The configured service of embeddings, if there is one."""
    if not settings.embeddings_url:
        return None
    from highwater.connectors.models.embedding_service import RemoteEmbedder  # noqa: PLC0415 - its client takes half a second

    return RemoteEmbedder(
        settings.embeddings_url,
        settings.embeddings_key,
        model=settings.embeddings_model,
        dimensions=settings.embedding_dimensions,
    )


def open_embedder(settings: Settings) -> Embedder:
    """What makes vectors outside feeds: the configured service, else the built-in embedder."""
    return open_remote_embedder(settings) or BuiltInEmbedder()
