"""The score of a chunk in a search: its content, weighed against its age (R3.17, R3.18).

Invariant: the score of a chunk depends only on the chunk, the search and the time, never on other results. A bound is
never below the score of any of its chunks, also in floating-point arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

DAY_MS = 86_400_000
# The words' share of the similarity in hybrid mode, unless the passport sets another; the rest is the cosine. Vectors
# find the same meaning in other words, words find names and numbers; neither may decide alone. Chosen with
# `FUSED_SATURATION` on the questions with even numbers (docs/benchmarks/search.md).
TEXT_SHARE = 0.3
# The least share for a question with a name (a version, a date, KIP-500) that some chunk has as a whole: models of meaning
# give all versions of one thing almost the same vector. With the usual share 0.48 of sixty versions of D-Bus were first
# in a search for "dbus 1.14.8", with this one 0.77, as by words alone (docs/benchmarks/search.md).
NAMED_TEXT_SHARE = 0.5
# The least share for a question that the local model does not read: its vectors say which letters two texts share. Chosen on the
# even questions of the Russian set; with the usual share a search found less than by words alone (docs/benchmarks/search.md).
UNREAD_TEXT_SHARE = 0.85
# The share when chunks and insights are compared for an answer. Insights are short: a word occurs in their text or not.
ANSWER_TEXT_SHARE = 0.4
# BM25 (Robertson and Zaragoza 2009): a word that occurs k1 times in a chunk of mean length has half of its maximum
# weight, and this share (b) of that number grows with the length of the chunk. The usual values.
SATURATION, LENGTH_SHARE = 1.2, 0.75
# k1 beside a cosine. Words alone must separate a text about a word from one that only mentions it, by counting. A cosine
# knows what a text is about; beside it, it matters more that the text has all words of the question.
FUSED_SATURATION = 0.35


class Mode(StrEnum):
    """What the similarity is computed from: vectors only, or vectors and words."""

    SEMANTIC = "semantic"
    HYBRID = "hybrid"


def age_days(published_ms: int | None, created_ms: int, now_ms: int) -> float:
    """Return the age of a chunk in days, since its source was published if that is known; 0 for a date in the future (R3.17)."""
    return max(0, now_ms - (created_ms if published_ms is None else published_ms)) / DAY_MS


def time_decay(age: float, half_life_days: float) -> float:
    """Return the remaining weight of a chunk at an age in days: 1 at 0, a half at a half-life, never negative (R3.17)."""
    return float(0.5 ** (age / half_life_days))


def is_past_ttl(age: float, ttl_days: float) -> bool:
    """Return whether a chunk is too old; one of exactly this age is not (R3.18)."""
    return age > ttl_days


def youngest_past_ttl_ms(ttl_days: float) -> int:
    """Return the least age in whole milliseconds for which `is_past_ttl` is true: the limit for a statement with whole
    milliseconds.
    """
    age_ms = max(0, math.floor(ttl_days * DAY_MS) - 1)
    while not is_past_ttl(age_ms / DAY_MS, ttl_days):
        age_ms += 1
    return age_ms


def text_share_of(mode: Mode, *, has_vector: bool, has_words: bool, text_share: float = TEXT_SHARE) -> float:
    """Return the share of words in a similarity: 0 in semantic mode, but everything if there is no vector to compare
    with.

    Otherwise only ages would decide the order of every question.
    """
    if not has_words:
        return 0.0
    if not has_vector:
        return 1.0
    return text_share if mode is Mode.HYBRID else 0.0


def saturation_of(text_share: float) -> float:
    """Return how often a word must occur for half of its maximum weight, in a chunk of average length: less beside a cosine."""
    return SATURATION if text_share >= 1 else FUSED_SATURATION


def word_weights(counts: Sequence[int], chunks: int) -> list[float]:
    """Return the weights of a question's words, summing to 1: the rarer the more (inverse document frequency, as in
    Lucene's BM25).

    Args:
        counts: how many chunks have each word; at least one word.
        chunks: how many chunks there are.
    """
    rarity = [math.log1p((max(chunks, count) - count + 0.5) / (count + 0.5)) for count in counts]
    total = math.fsum(rarity)
    return [one / total for one in rarity]


def text_score(
    weights: Sequence[float], times: Sequence[int], octets: int, mean_octets: float, saturation: float = SATURATION
) -> float:
    """Return how well a chunk answers by its words: BM25 as a share of the score of a chunk with only these words.

    The statements compute the same. Unlike plain BM25 it is comparable with a cosine, and needs no other result.

    Args:
        weights: of the words, summing to 1.
        times: how often the chunk has each.
        octets: the length of the chunk's text.
        mean_octets: the mean length of texts in its namespace.
        saturation: as `saturation_of` says.
    """
    half = saturation * (1 - LENGTH_SHARE + LENGTH_SHARE * octets / mean_octets)
    return math.fsum(weight * count / (count + half) for weight, count in zip(weights, times, strict=True))


def similarity_of(cosine: float | None, text_score: float | None, text_share: float = TEXT_SHARE) -> float:
    """Return the similarity; 0 if nothing can be compared.

    Args:
        cosine: of the vectors, -1 to 1; None without one, when words alone count.
        text_score: 0 to 1, of the words; None if words do not count.
        text_share: the share of the words.
    """
    if cosine is None or text_score is None:
        return cosine or text_score or 0.0
    return (1 - text_share) * cosine + text_share * text_score


def answer_similarity(cosine: float | None, by_words: float, *, is_read: bool) -> float:
    """Return how near a source of an answer is to its question, 0 to 1.

    Args:
        cosine: of their vectors; None if they have none that can be compared.
        by_words: the share of the weight of the question's words that the source contains.
        is_read: the model reads the language of the question. Else its vectors may only add to what the words say: two texts with
            the very same words have a cosine of 0.13 to 0.25.
    """
    similarity = similarity_of(cosine, by_words, ANSWER_TEXT_SHARE)
    return similarity if is_read else max(similarity, by_words)


def final_score(similarity: float, decay: float, alpha: float, beta: float, *, is_too_old: bool = False) -> float:
    """Return `alpha * similarity + beta * time_decay(age)` (R3.17); 0 for a chunk that is past its TTL but not left out
    (R3.18).
    """
    return 0.0 if is_too_old else alpha * similarity + beta * decay
