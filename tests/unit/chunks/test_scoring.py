"""The score of a chunk: the formula to the letter, its edges, and that what bounds it does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.chunks.scoring import (
    DAY_MS,
    FUSED_SATURATION,
    SATURATION,
    TEXT_SHARE,
    age_days,
    final_score,
    is_past_ttl,
    saturation_of,
    similarity_of,
    text_score,
    time_decay,
    word_weights,
    youngest_past_ttl_ms,
)

SCORES = st.floats(-1, 1)
WEIGHTS = st.floats(0, 1)
AGES = st.floats(0, 100_000)
NOW = 1_800_000_000_000


@pytest.mark.requirement("R3.17")
def test_the_formula():
    """`final = alpha * similarity + beta * time_decay(age)`, the decay a half at a half-life (R3.17)."""
    assert time_decay(30, 30) == 0.5
    assert time_decay(60, 30) == 0.25
    assert final_score(0.9, time_decay(30, 30), 0.8, 0.2) == 0.8 * 0.9 + 0.2 * 0.5
    assert final_score(-0.5, 1.0, 0.8, 0.2) == 0.8 * -0.5 + 0.2


def test_a_new_chunk_has_its_whole_weight():
    """The decay is 1 at age 0, for any half-life."""
    assert {time_decay(0, half_life) for half_life in (1e-6, 1.0, 30.0, 1e9)} == {1.0}


def test_an_ancient_chunk_has_none():
    """The decay falls to 0 and raises nothing."""
    assert time_decay(36_600, 1e-6) == 0.0


@pytest.mark.requirement("R3.17")
def test_age_is_that_of_the_publication():
    """From `published_at` if it is known, else from `created_at` (R3.17)."""
    assert age_days(NOW - 3 * DAY_MS, NOW - DAY_MS, NOW) == 3.0
    assert age_days(None, NOW - DAY_MS, NOW) == 1.0
    assert age_days(0, NOW, NOW) == NOW / DAY_MS  # 1970 is a date, not a missing one


def test_a_date_to_come_is_no_age():
    """A publication in the future counts as one of now."""
    assert age_days(NOW + DAY_MS, NOW, NOW) == 0.0


@pytest.mark.requirement("R3.18")
def test_the_ttl_is_strict():
    """A chunk exactly as old as the limit is not past it (R3.18)."""
    assert not is_past_ttl(365.0, 365.0)
    assert is_past_ttl(math.nextafter(365.0, 366), 365.0)


@pytest.mark.requirement("R3.18")
def test_what_is_too_old_scores_nothing_at_all():
    """Not only the decay: the similarity does not count either (R3.18)."""
    assert final_score(1.0, 0.7, 0.8, 0.2, is_too_old=True) == 0.0
    assert final_score(-1.0, 0.7, 0.8, 0.2, is_too_old=True) == 0.0


@given(st.floats(1e-9, 36_600))
def test_the_cut_in_milliseconds_is_that_of_days(ttl_days: float):
    """The least age past the TTL is past it, and the millisecond before is not."""
    age_ms = youngest_past_ttl_ms(ttl_days)
    assert is_past_ttl(age_days(None, NOW - age_ms, NOW), ttl_days)
    assert not is_past_ttl(age_days(None, NOW - age_ms + 1, NOW), ttl_days)


def test_semantic_similarity_is_the_cosine():
    """Words count in hybrid mode only; there both have their share."""
    assert similarity_of(0.4, None) == 0.4
    assert similarity_of(-0.4, None) == -0.4
    assert similarity_of(0.4, 1.0) == pytest.approx((1 - TEXT_SHARE) * 0.4 + TEXT_SHARE)
    assert similarity_of(1.0, 1.0) == pytest.approx(1.0)
    assert (similarity_of(None, 0.7), similarity_of(None, None), similarity_of(-0.2, None)) == (0.7, 0.0, -0.2)


@given(SCORES, SCORES, st.floats(0, 1), st.floats(0, 1), AGES, AGES, st.floats(0.001, 36_600), WEIGHTS, WEIGHTS)
def test_a_bound_is_one(
    cosine: float,
    cosine_max: float,
    text: float,
    text_max: float,
    age: float,
    age_min: float,
    half_life: float,
    alpha: float,
    beta: float,
):
    """No chunk that is less similar and older scores higher, except for the last bits of a power."""
    cosine, cosine_max = sorted((cosine, cosine_max))
    text, text_max = sorted((text, text_max))
    age_min, age = sorted((age_min, age))
    score = final_score(similarity_of(cosine, text), time_decay(age, half_life), alpha, beta)
    bound = final_score(similarity_of(cosine_max, text_max), time_decay(age_min, half_life), alpha, beta)
    assert score <= bound + abs(bound) * 1e-12


def test_beside_a_cosine_it_counts_less_how_often_a_word_is_there():
    """A text with both words once comes before one with the rarer of them nine times; alone it is the other way round."""
    weights = word_weights([50, 200], 1_000)

    def difference(share: float) -> float:
        both, one = ([1, 1], [9, 0])
        return text_score(weights, both, 200, 200.0, saturation_of(share)) - text_score(
            weights, one, 200, 200.0, saturation_of(share)
        )

    assert (saturation_of(1.0), saturation_of(TEXT_SHARE)) == (SATURATION, FUSED_SATURATION)
    assert difference(TEXT_SHARE) > 0 > difference(1.0)


def test_bm25_to_the_letter():
    """Summed: rarity * (k1 + 1) * times / (times + k1 * (1 - b + b * length / mean)), as a share of its greatest value."""
    chunks, counts, times, octets, mean = 1_000, [3, 400, 0], [2, 1, 0], 300, 200.0
    rarity = [math.log(1 + (chunks - n + 0.5) / (n + 0.5)) for n in counts]
    saturation = 1.2 * (1 - 0.75 + 0.75 * octets / mean)
    plain = sum(one * 2.2 * n / (n + saturation) for one, n in zip(rarity, times, strict=True))
    assert text_score(word_weights(counts, chunks), times, octets, mean) == pytest.approx(plain / (2.2 * sum(rarity)))


@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 64)), min_size=1, max_size=8), st.integers(1, 9_000))
def test_a_text_score_is_a_share(words: list[tuple[int, int]], octets: int):
    """From 0, which has none of the words, to 1 at most; the weights are 1 together and none is negative."""
    counts, times = [count for count, _ in words], [number for _, number in words]
    weights = word_weights(counts, 1_000)
    assert sum(weights) == pytest.approx(1)
    assert min(weights) >= 0
    assert 0 <= text_score(weights, times, octets, 200.0) < 1
    assert (text_score(weights, times, octets, 200.0) > 0) == any(times)
