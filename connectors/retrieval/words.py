"""The words of a question, what each weighs in a namespace (BM25), and which of them candidates are looked for by.

Invariant: the weights are of exactly the chunks that the transaction sees: `chunk_words` is summed in its snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

from highwater.connectors.postgres.pool import Connection
from highwater.connectors.retrieval.statements import QUERIES
from highwater.streams.chunks.scoring import LENGTH_SHARE, saturation_of, word_weights

# Each word of a question is weighed in each candidate; those beyond are the commonest of it and tell least.
WORDS_MAX = 32
# `ts_rank` of a chunk that has a word n times is (1 + 1/4 + ... + 1/n^2) / (pi^2 / 6), as PostgreSQL rounds it. Between two of
# these numbers lies what tells n; more than 64 times weigh hardly more than 64 times.
_TIMES_MAX, _RANK_OF_ALL = 64, 1.64493406685


def _ranks() -> list[float]:
    found, total = [], 0.0
    for times in range(1, _TIMES_MAX + 1):
        step = 1 / times**2 / _RANK_OF_ALL
        total += step
        found.append(total - step / 2)
    return found


RANKS = _ranks()


class AskedWords(NamedTuple):
    """The words of a question as the statements take them.

    Attributes:
        any_word: a tsquery of chunks that have any of them.
        all_words: of those that have all.
        queries: a tsquery for each word, the rarest first.
        counts: how many chunks have each word.
        weights: of the words, together 1.
        saturation: the part of the saturation that is the same for all chunks.
        saturation_per_octet: the part that grows with the length of a chunk.
        rare: how many of the words are rare: few enough chunks have one of them.
    """

    any_word: str
    all_words: str
    queries: list[str]
    counts: list[int]
    weights: list[float]
    saturation: float
    saturation_per_octet: float
    rare: int

    @property
    def rare_words(self) -> str:
        """A tsquery of chunks that have one of the rare words; of the rarest where none is rare."""
        return " | ".join(self.queries[: max(1, self.rare)])

    @property
    def rest(self) -> float:
        """What a chunk without any of the rare words scores at most."""
        return sum(self.weights[self.rare :]) if self.rare else 1.0

    def settling(self, is_settled: Callable[[float], bool], more_max: int) -> AskedWords | None:
        """The same with as few more words looked for as settle a search; None where too many chunks have one of these.

        Args:
            is_settled: whether a search is settled if no other chunk scores more than this by its words.
            more_max: how many more chunks may be looked at.
        """
        for rare in range(self.rare + 1, len(self.counts) + 1):
            more = self._replace(rare=rare)
            if more.candidates - self.candidates > more_max:
                return None
            if is_settled(more.rest):
                return more
        return None

    @property
    def candidates(self) -> int:
        """How many chunks have one of the rare words, at most."""
        return sum(self.counts[: self.rare])


async def words_of(
    tx: Connection, ns: str, question: str, candidates_max: int, *, text_share: float
) -> AskedWords | None:
    """The words of a question, weighed; None where it has none that can be looked for.

    Args:
        tx: the snapshot of the search.
        ns: the namespace.
        question: as it was asked.
        candidates_max: how many chunks may have one of the rare words.
        text_share: the share of words in a similarity.
    """
    rows = await tx.fetch(QUERIES["words_asked"], ns, question)
    counts = {row["word"]: row["chunks"] for row in rows}
    chunks = counts.pop("", 0)
    octets = sum(row["octets"] for row in rows)
    rarest = sorted(counts, key=lambda word: (counts[word], word))[:WORDS_MAX]
    if not rarest:
        return None
    chunks_of = [counts[word] for word in rarest]
    saturation = saturation_of(text_share)
    queries = [_quoted(word) for word in rarest]
    return AskedWords(
        any_word=" | ".join(queries),
        all_words=" & ".join(queries),
        queries=queries,
        counts=chunks_of,
        weights=word_weights(chunks_of, chunks),
        saturation=saturation * (1 - LENGTH_SHARE),
        saturation_per_octet=saturation * LENGTH_SHARE * chunks / max(1, octets),
        rare=sum(found <= candidates_max for found in accumulate(chunks_of)),
    )


def _quoted(word: str) -> str:
    """A word as a tsquery: one that PostgreSQL has made needs neither a dictionary nor a parser."""
    escaped = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
