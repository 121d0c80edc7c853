"""Vectors of what is searched for, made by what makes those of chunks.

Laws. A text is embedded once while it is remembered, however many ask for it at a time. Vectors of two models are never compared:
who asks says whose vectors he compares with, and gets none where they are another's.
"""

from __future__ import annotations

from collections import OrderedDict

from highwater.connectors.models.embeddings import Embedder
from highwater.connectors.postgres.shared_reads import SharedReads

# Questions repeat (a page is polled, a user scrolls); a vector of 384 takes 1.5 kB, so all of them some 2 MB.
TEXTS_MAX = 1_000


class QueryVectors:
    """Vectors by text, those asked for last."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._reads: SharedReads[bytes] = SharedReads()

    @property
    def model(self) -> str:
        """Whose vectors they are, as it stands beside those of chunks."""
        return self._embedder.basis_id

    async def of(self, text: str) -> bytes:
        """The vector of a text, little-endian float32.

        Raises:
            UnavailableError: the service does not answer.
            EmbeddingError: it answers something else.
        """
        held = self._held.get(text)
        if held is None:
            held = await self._reads.read(text, lambda: self._embed(text))
            self._held[text] = held
            while len(self._held) > TEXTS_MAX:
                self._held.popitem(last=False)
        self._held.move_to_end(text)
        return held

    async def _embed(self, text: str) -> bytes:
        return (await self._embedder.embed([text]))[0]
