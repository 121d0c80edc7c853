"""The embedding port: texts to vectors through an OpenAI-compatible service, or by the built-in embedder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from highwater.schemas.errors import HighwaterError
from highwater.streams.feeds.basis import MARKED, UNFITTED, Basis
from highwater.streams.feeds.embedding import TextEmbedder


class Embedded(NamedTuple):
    """Vectors in order, and the tokens that the service read for them; 0: free."""

    vectors: list[bytes]
    tokens: int = 0


class Embedder(Protocol):
    """Converts texts to vectors: little-endian float32 of unit length. `calls_at_once` concurrent calls make it faster,
    more do not.

    `is_paid`: its calls cost tokens; `model` is the name with a price.
    """

    basis_id: str
    calls_at_once: int
    is_paid: bool
    model: str

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return vectors in order."""

    async def embed_counted(self, texts: Sequence[str]) -> Embedded:
        """Return vectors with their cost."""


class VersionedEmbedder(Embedder, Protocol):
    """One that was released: vectors of its former versions may be stored."""

    def former(self) -> Sequence[Embedder]:
        """Return what embeds questions for the vectors of its former versions, the latest first.

        Namespaces keep such vectors until all their vectors are replaced.
        """


class BuiltInEmbedder:
    """The built-in embedder, unfitted: its vectors do not change with those of feeds.

    `basis`: the way in which words become vectors, of this release or of a former one.
    """

    calls_at_once = 1
    is_paid = False

    def __init__(self, basis: Basis = MARKED) -> None:
        self._made = TextEmbedder(basis)
        self.basis_id = self.model = self._made.basis_id

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return vectors in order."""
        return [row.astype("<f4").tobytes() for row in self._made.embed(texts)]

    async def embed_counted(self, texts: Sequence[str]) -> Embedded:
        """Return vectors; they are free."""
        return Embedded(await self.embed(texts))

    def former(self) -> Sequence[Embedder]:
        """Return the version in which marks were no part of words."""
        return [] if self.basis_id == UNFITTED.basis_id else [BuiltInEmbedder(UNFITTED)]


class EmbeddingError(HighwaterError):
    """The embedding service did not return the requested vectors. Check its model and dimensions."""
