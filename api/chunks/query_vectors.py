"""Vectors of what is searched for, made by what makes those of chunks.

Laws. A text is embedded once while it is remembered, however many ask for it at a time; who asks first pays. Vectors of two
models are never compared: who asks says whose vectors he compares with, and gets none where they are another's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from highwater.connectors.models.embeddings import Embedder
from highwater.connectors.postgres.shared_reads import SharedReads

# Questions repeat (a page is polled, a user scrolls); a vector of 384 takes 1.5 kB, so all of them some 2 MB.
TEXTS_MAX = 1_000


class QueryVectors:
    """Vectors by text, those asked for last."""

    def __init__(self, embedder: Embedder, note: Callable[[str, int], None]) -> None:
        """`note` is told the organization that pays and the tokens, of vectors that cost something."""
        self._embedder = embedder
        self._note = note
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._reads: SharedReads[bytes] = SharedReads()

    @property
    def model(self) -> str:
        """Whose vectors they are, as it stands beside those of chunks."""
        return self._embedder.basis_id

    def is_paid(self, text: str) -> bool:
        """Whether the vector of a text costs something now."""
        return self._embedder.is_paid and text not in self._held

    async def of(self, text: str, payer: str | None) -> bytes:
        """The vector of a text, little-endian float32. `payer`: the organization of who asks; None: the operator pays.

        Raises:
            UnavailableError: the service does not answer.
            EmbeddingError: it answers something else.
        """
        held = self._held.get(text)
        if held is None:
            held = await self._reads.read(text, lambda: self._embed(text, payer))
            self._held[text] = held
            while len(self._held) > TEXTS_MAX:
                self._held.popitem(last=False)
        self._held.move_to_end(text)
        return held

    async def _embed(self, text: str, payer: str | None) -> bytes:
        made = await self._embedder.embed_counted([text])
        if payer is not None and made.tokens:
            self._note(payer, made.tokens)
        return made.vectors[0]
