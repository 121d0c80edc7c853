"""The words of a question, what each weighs in a namespace (BM25), and which of them candidates are looked for by.

Law: the weights are of exactly the chunks that the transaction sees: `chunk_words` is summed in its snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from highwater.connectors.postgres.pool import Connection
from highwater.connectors.retrieval.statements import QUERIES
from highwater.streams.chunks.scoring import LENGTH_SHARE, SATURATION, word_weights

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
        rare_words: of those that have one of the rare ones, which few enough chunks have; of the rarest where none is rare.
        queries: a tsquery for each word.
        weights: of the words, together 1.
        saturation: the part of the saturation that is the same for all chunks.
        saturation_per_octet: the part that grows with the length of a chunk.
        rest: what a chunk without any of the rare words scores at most.
    """

    any_word: str
    all_words: str
    rare_words: str
    queries: list[str]
    weights: list[float]
    saturation: float
    saturation_per_octet: float
    rest: float


async def words_of(tx: Connection, ns: str, question: str, candidates_max: int) -> AskedWords | None:
    """The words of a question, weighed; None where it has none that can be looked for.

    Args:
        tx: the snapshot of the search.
        ns: the namespace.
        question: as it was asked.
        candidates_max: how many chunks may have one of the rare words.
    """
    rows = await tx.fetch(QUERIES["words_asked"], ns, question)
    counts = {row["word"]: row["chunks"] for row in rows}
    chunks = counts.pop("", 0)
    octets = sum(row["octets"] for row in rows)
    rarest = sorted(counts, key=lambda word: (counts[word], word))[:WORDS_MAX]
    if not rarest:
        return None
    weights = word_weights([counts[word] for word in rarest], chunks)
    found, rare = 0, 0
    for word in rarest:
        found += counts[word]
        if found > candidates_max:
            break
        rare += 1
    queries = [_quoted(word) for word in rarest]
    return AskedWords(
        any_word=" | ".join(queries),
        all_words=" & ".join(queries),
        rare_words=" | ".join(queries[: max(1, rare)]),
        queries=queries,
        weights=weights,
        saturation=SATURATION * (1 - LENGTH_SHARE),
        saturation_per_octet=SATURATION * LENGTH_SHARE * chunks / max(1, octets),
        rest=_rest(weights, rare),
    )


def _rest(weights: Sequence[float], rare: int) -> float:
    return sum(weights[rare:]) if rare else 1.0


def _quoted(word: str) -> str:
    """A word as a tsquery: one that PostgreSQL has made needs neither a dictionary nor a parser."""
    escaped = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
