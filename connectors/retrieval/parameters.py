"""The parameters that all statements of a search share, and what the score of a chunk depends on.

Invariant: their order is that of the statements in `chunk_search.sql`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from highwater.connectors.retrieval.words import RANKS, AskedWords
from highwater.streams.checks import TS_MS_MIN
from highwater.streams.chunks.asked_text import AskedText, is_word, pattern_of
from highwater.streams.chunks.passports import Passport, TtlMode
from highwater.streams.chunks.scoring import youngest_past_ttl_ms
from highwater.streams.clock import to_datetime


class Parameters(NamedTuple):
    """The parameters that all statements share."""

    ns: str
    vector: bytes | None
    words: str | None
    slot: str | None
    source_ids: list[str] | None
    oldest: datetime | None
    oldest_scored: datetime | None
    as_of: datetime
    alpha: float
    beta: float
    half_life_days: float
    text_share: float
    newest: datetime | None
    queries: list[str] | None = None
    weights: list[float] | None = None
    saturation: float | None = None
    saturation_per_octet: float | None = None
    ranks: Sequence[float] | None = None
    stems: list[int] | None = None
    per_source: int | None = None
    texts_of: datetime | None = None
    required: str | None = None
    required_patterns: list[str] | None = None
    excluded_patterns: list[str] | None = None

    def weighing(self, words: AskedWords, share: float) -> Parameters:
        """Return the same with words, and their share of a similarity."""
        return self._replace(
            words=words.any_word,
            text_share=share,
            queries=words.queries,
            weights=words.weights,
            saturation=words.saturation,
            saturation_per_octet=words.saturation_per_octet,
            ranks=RANKS,
            stems=words.stems,
        )

    def requiring(self, asked: AskedText, words: str | None) -> Parameters:
        """Return the same for texts with what a question requires and without what it excludes. `words`: a tsquery of both."""
        required = [pattern_of(one) for one in asked.required]
        excluded = [pattern_of(one) for one in asked.excluded if not is_word(one)]
        return self._replace(required=words, required_patterns=required or None, excluded_patterns=excluded or None)


class Scoring(NamedTuple):
    """What the score of a chunk depends on, besides the question."""

    passport: Passport
    is_hot: bool
    as_of_ms: int


def parameters_of(
    ns: str,
    vector: bytes | None,
    scoring: Scoring,
    *,
    slot: str | None = None,
    source_ids: Sequence[str] | None = None,
    oldest_ms: int | None = None,
    newest_ms: int | None = None,
    per_source: int | None = None,
    texts_of_ms: int | None = None,
) -> tuple[Parameters, datetime | None]:
    """Return the parameters of a search without words, and the time before which a chunk is hidden for its age."""
    passport = scoring.passport
    cut = to_datetime(max(TS_MS_MIN, scoring.as_of_ms - youngest_past_ttl_ms(passport.ttl_days) + 1))
    is_filter = passport.ttl_mode == TtlMode.FILTER
    asked = Parameters(
        ns=ns,
        vector=vector,
        words=None,
        slot=slot,
        source_ids=None if source_ids is None else list(source_ids),
        oldest=_later(cut if is_filter else None, oldest_ms),
        oldest_scored=None if is_filter else cut,
        as_of=to_datetime(scoring.as_of_ms),
        alpha=passport.alpha,
        beta=passport.beta,
        half_life_days=passport.half_life_days,
        text_share=0.0,
        newest=None if newest_ms is None else to_datetime(newest_ms),
        per_source=per_source,
        texts_of=None if texts_of_ms is None else to_datetime(texts_of_ms),
    )
    return asked, cut if is_filter else None


def _later(one: datetime | None, other_ms: int | None) -> datetime | None:
    """Return the later of two bounds, if there are any."""
    other = None if other_ms is None else to_datetime(other_ms)
    return max((bound for bound in (one, other) if bound is not None), default=None)
