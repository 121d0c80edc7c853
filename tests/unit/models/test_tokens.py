"""The number of tokens of a text, and its first N tokens."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.models.tokens import count_tokens, cut_to_tokens
from tests import ROOT

# Counted with the vocabularies of cl100k_base and o200k_base; the larger of the two.
COUNTED = [
    ("hello world", 2),
    ("The quick brown fox jumps over the lazy dog.", 10),
    (
        "KAFKA-16831: CoordinatorRuntime should initialize MemoryRecordsBuilder with max batch size write limit (#16059)",
        24,
    ),
    ("SELECT id FROM runs WHERE user_id = $1 ORDER BY ordinal LIMIT 10;", 17),
    ('{"needs_context": true, "search_keywords": ["KRaft"]}', 16),
    ("1234567890" * 10, 34),
    ("Какие зависимости были обновлены вчера?", 17),
    ("Které závislosti byly včera aktualizovány?", 18),
    ("カフカは分散型ストリーミングプラットフォームです。", 22),
    ("👩‍👩‍👧‍👦🇺🇦👍🏽", 30),
    ("Donaudampfschifffahrtsgesellschaftskapitän", 17),
    ("642da2f28c9bc6e37360", 12),
    ("Fixes apicheck", 5),
    ("jqkrcwbeemkkzpfjayiarutsanroyaztqmddssazmcpglsbnprkgaeppinuqdnorqjzcbn", 38),
    ("JXEVTTZD44ZFSBDV7SILR7RHYSSANUXVKGVOPNR3KVNKWTXA4MBGO635SESYJXHLDPL5SE", 44),
]
MIXED = st.text(
    alphabet=st.one_of(
        st.sampled_from(list(" \n\tabcTHEing<>/{}-=#.,1290éя中é👍\u200d\ud800")), st.characters(exclude_categories=())
    ),
    max_size=300,
)


@pytest.mark.parametrize(("text", "tokens"), COUNTED)
def test_an_estimate_is_not_below_the_real_count_and_not_far_above(text: str, tokens: int) -> None:
    """The true number is at most the estimate; short texts of any script stay within three times."""
    assert tokens <= count_tokens(text) <= 3 * tokens + 3


def test_prose_is_estimated_near_the_truth() -> None:
    """The licence, whose real count is known, is estimated within 1.35 times of it."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert 2_263 <= count_tokens(text) <= 1.35 * 2_263


def test_encoded_data_is_dear() -> None:
    """Base64 has about 1.4 letters a token: nothing that looks like words makes it cheap."""
    text = base64.b64encode(bytes(range(256)) * 20).decode()
    assert count_tokens(text) >= len(text) / 1.8


def test_the_empty_text_has_none() -> None:
    """An empty text counts as zero."""
    assert (count_tokens(""), cut_to_tokens("", 0), cut_to_tokens("abc", 0)) == (0, "", "")


@given(MIXED, st.integers(0, 200))
def test_a_cut_is_a_beginning_within_its_tokens(text: str, tokens_max: int) -> None:
    """For any script it is a prefix, within the limit, and the whole text if it fits."""
    cut = cut_to_tokens(text, tokens_max)
    assert text.startswith(cut)
    assert count_tokens(cut) <= tokens_max
    assert (cut == text) == (count_tokens(text) <= tokens_max)


def test_a_cut_holds_at_every_limit() -> None:
    """None is missed by one, and neither halves of surrogate pairs nor long characters are lost or split."""
    text = "The consumerGroup \ud800 中\U0001f600 of\r\n  topic/é\u0301 \udc00x9-- ქართული"
    for tokens_max in range(count_tokens(text) + 2):
        cut = cut_to_tokens(text, tokens_max)
        assert text.startswith(cut)
        assert count_tokens(cut) <= tokens_max
        assert (cut == text) == (count_tokens(text) <= tokens_max)


@given(MIXED, MIXED)
def test_two_texts_together_count_no_more_than_one_by_one(left: str, right: str) -> None:
    """Sums of parts bound the whole, which is how a draft is kept within its limit."""
    assert count_tokens(f"{left}\n{right}") <= count_tokens(f"{left}\n") + count_tokens(right)


def test_a_cut_falls_between_words() -> None:
    """A reader does not find half a word."""
    text = "consumerGroup partition-coordinator " * 200
    for tokens_max in range(100, 120):
        cut = cut_to_tokens(text, tokens_max)
        assert cut.endswith(("consumerGroup", "partition-coordinator"))
        assert count_tokens(cut) > tokens_max - 10


def test_a_cut_of_encoded_data_keeps_what_fits() -> None:
    """Without the end of a word, the cut is still made, near the limit."""
    assert count_tokens(cut_to_tokens("x9" * 5_000, 100)) > 90
    assert count_tokens(cut_to_tokens("中" * 5_000, 100)) > 90


def test_a_long_text_without_spaces_is_linear() -> None:
    """Four megabytes of one letter are counted and cut; a quadratic search for an end would take hours."""
    text = "a" * 4_000_000
    assert count_tokens(text) >= len(text) / 8
    assert len(cut_to_tokens(text, 1_000_000)) > 0
