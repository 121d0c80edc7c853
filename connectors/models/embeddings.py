"""The embedding port: texts to vectors through an OpenAI-compatible service, or by the built-in embedder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from highwater.schemas.errors import HighwaterError
from highwater.streams.feeds.basis import MARKED
from highwater.streams.feeds.embedding import TextEmbedder


class Embedded(NamedTuple):
    """Vectors in order, and the tokens that the service read for them; 0: nobody is paid."""

    vectors: list[bytes]
    tokens: int = 0


class Embedder(Protocol):
    """Texts to vectors: little-endian float32 of unit length. So many calls at once make it faster, and no more.

    `is_of_meaning`: questions that are near in it ask the same in other words and may share an answer; otherwise only those
    of the same words may.
    `is_paid`: its calls cost tokens; `model` is what has a price.
    """

    basis_id: str
    calls_at_once: int
    is_of_meaning: bool
    is_paid: bool
    model: str

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Vectors in order."""

    async def embed_counted(self, texts: Sequence[str]) -> Embedded:
        """The same, with what they cost."""


class BuiltInEmbedder:
    """The built-in embedder, unfitted: its vectors stay the same whatever the feeds do with theirs."""

    calls_at_once = 1
    is_of_meaning = False
    is_paid = False

    def __init__(self) -> None:
        self._made = TextEmbedder(MARKED)
        self.basis_id = self.model = self._made.basis_id

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Vectors in order."""
        return [row.astype("<f4").tobytes() for row in self._made.embed(texts)]

    async def embed_counted(self, texts: Sequence[str]) -> Embedded:
        """The same; nobody is paid for them."""
        return Embedded(await self.embed(texts))


class EmbeddingError(HighwaterError):
    """The embedding service did not return the requested vectors. Check its model and dimensions."""
