"""Computes the vectors of search queries with the same model as those of chunks.

Invariants. A text is embedded once while it is cached, even for concurrent searches; the first caller pays. Vectors of
two models are never compared: the caller names the model of the namespace, and searches by words if its vectors cannot
be computed here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from highwater.connectors.models.embeddings import Embedder
from highwater.connectors.postgres.shared_reads import SharedReads

# Questions repeat (a page is polled, a user scrolls); a vector of 384 numbers takes 1.5 kB, so the cache takes some 2
# MB.
TEXTS_MAX = 1_000


class QueryVectors:
    """A cache of vectors by model and text, least recently used first."""

    def __init__(self, embedders: Sequence[Embedder], note: Callable[[str, int], None]) -> None:
        """`embedders`: the one for new namespaces, then those of older ones.

        `note` is called with the paying organization and the tokens of vectors that cost something.
        """
        self.model = embedders[0].basis_id  # the form stored beside the vectors of chunks
        self._embedders = {embedder.basis_id: embedder for embedder in reversed(embedders)}
        self._note = note
        self._held: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._reads: SharedReads[bytes] = SharedReads()

    def makes(self, model: str | None) -> bool:
        """Return whether vectors of this model can be computed here."""
        return model in self._embedders

    def is_paid(self, model: str, text: str) -> bool:
        """Return whether the vector of a text would cost something now."""
        return self._embedders[model].is_paid and (model, text) not in self._held

    async def of(self, model: str, text: str, payer: str | None) -> bytes:
        """Return the vector of a text, little-endian float32. `payer`: the caller's organization; None: the operator
        pays.

        Raises:
            UnavailableError: the service does not answer.
            EmbeddingError: its answer is not a vector.
        """
        wanted = (model, text)
        held = self._held.get(wanted)
        if held is None:
            held = await self._reads.read("\0".join(wanted), lambda: self._embed(model, text, payer))
            self._held[wanted] = held
            while len(self._held) > TEXTS_MAX:
                self._held.popitem(last=False)
        self._held.move_to_end(wanted)
        return held

    async def _embed(self, model: str, text: str, payer: str | None) -> bytes:
        made = await self._embedders[model].embed_counted([text])
        if payer is not None and made.tokens:
            self._note(payer, made.tokens)
        return made.vectors[0]
