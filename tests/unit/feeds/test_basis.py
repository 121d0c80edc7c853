"""Bases of the built-in embedder: fitting one, its bytes and name, and vectors made in it."""

import hashlib
import time
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.streams.feeds import basis as bases
from highwater.streams.feeds import embedding
from highwater.streams.feeds.basis import (
    COUNTERS,
    DIMENSIONS,
    UNFITTED,
    UNFITTED_ID,
    WIDTH,
    Basis,
    fit_basis,
    should_fit,
)
from highwater.streams.feeds.embedding import TextEmbedder
from tests.unit.feeds import sample
from tests.unit.feeds.test_embedding import GOLDEN

MADE_UP_DIGEST = "1a6d55401f62e4b95499796af440e8f7fd889c153ee214dd4f4e4aad3f6f11a0"


@cache
def fitted():
    """The basis of the bundled sample."""
    made = fit_basis(sample.texts())
    assert made is not None
    return made


@cache
def made_up(form=bases._MAGIC_NAME):
    """A basis that no linear algebra made, so that it is the same everywhere; of one of the forms of bases."""
    noise = np.frombuffer(hashlib.shake_256(b"made up").digest(3 * COUNTERS + 2 * WIDTH * DIMENSIONS), np.uint8)
    head = bases._MAGIC.pack(form, 7)
    return Basis.from_bytes(head + (noise[: 3 * COUNTERS] % 90 + 1).tobytes() + noise[3 * COUNTERS :].tobytes())


def cosine(one, other):
    """How near two texts are in the fitted basis, -1..1."""
    first, second = TextEmbedder(fitted()).embed([one, other])
    return float(first @ second)


def test_a_basis_stands_for_these_very_bits():
    """The same basis gives the same bits on every machine; a change of them asks for a new prefix of the id."""
    older, newer = made_up(b"HWB2"), made_up()
    assert (older.basis_id, newer.basis_id) == ("text-384.v2-a9f7cbbab866", "text-384.v3-d606f4d28f95")
    for basis in (older, newer):
        rows = TextEmbedder(basis).embed(GOLDEN)
        assert hashlib.sha256(rows.astype("<f4").tobytes()).hexdigest() == MADE_UP_DIGEST


def test_a_basis_goes_on_cutting_words_as_when_it_was_fitted():
    """One that is stored is read in its form again, and its words lose their marks if they did when it was fitted."""
    older, newer = made_up(b"HWB2"), made_up()
    for basis in (older, newer):
        assert Basis.from_bytes(basis.to_bytes(), basis.basis_id).keeps_marks is (basis is newer)
    text = ["किताब"]
    assert (TextEmbedder(older).embed(text) != TextEmbedder(newer).embed(text)).any()


def test_bytes_give_the_basis_back():
    """Bytes and id are enough to make the same vectors; the unfitted basis has no bytes and its fixed id."""
    again = Basis.from_bytes(fitted().to_bytes(), fitted().basis_id)
    assert (again.basis_id, again.fitted_on) == (fitted().basis_id, fitted().fitted_on)
    texts = sample.texts()[:200]
    np.testing.assert_array_equal(TextEmbedder(again).embed(texts), TextEmbedder(fitted()).embed(texts))
    assert (Basis.from_bytes(b"").basis_id, UNFITTED.to_bytes()) == (UNFITTED_ID, b"")
    assert len(fitted().to_bytes()) < 1_800_000


def test_bytes_of_something_else_are_refused():
    """A cut, foreign or altered basis is reported and never used."""
    whole = fitted().to_bytes()
    altered = whole[:-1] + bytes([whole[-1] ^ 1])
    for data, reason in ((whole[:-1], "not a model"), (b"X" + whole[1:], "not a model"), (altered, "not of")):
        with pytest.raises(ValueError, match=reason):
            Basis.from_bytes(data, fitted().basis_id)


def test_texts_of_the_same_words_count_once():
    """A bot's thousand lines that differ in their numbers change nothing, and alone are no corpus."""
    bot = [f"Bump lodash from 4.17.{n} to 4.17.{n + 1}" for n in range(5_000)]
    with_bot = fit_basis([*sample.texts(), *bot])
    without = fit_basis([*sample.texts(), bot[0]])
    assert with_bot is not None
    assert without is not None
    assert with_bot.basis_id == without.basis_id
    assert fit_basis(bot) is None
    assert fit_basis(["", None, " "] * 1_000) is None


def test_a_fit_is_bounded(monkeypatch):
    """The number of texts, the characters of a text, and the characters in all are limited by the bounds."""
    texts = iter(sample.texts())
    monkeypatch.setattr(bases, "FIT_TEXTS_MAX", 1_100)
    made = fit_basis(texts)
    assert made is not None
    assert made.fitted_on == 1_100
    assert len(list(texts)) > 1_000
    monkeypatch.setattr(bases, "FIT_CHARACTERS_MAX", 20_000)
    assert fit_basis(sample.texts()) is None
    monkeypatch.setattr(bases, "FIT_TEXT_CHARACTERS_MAX", 3)
    assert fit_basis(sample.texts()) is None


@pytest.mark.parametrize(
    ("corpus", "fitted_on", "is_due"),
    [(999, None, False), (1_000, None, True), (3_999, 1_000, False), (4_000, 1_000, True), (10**9, 10**8, True)],
)
def test_fits_are_as_far_apart_as_the_logarithm(corpus, fitted_on, is_due):
    """The first at 1,000 insights, each next at four times the one before."""
    assert should_fit(corpus, fitted_on) is is_due


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(max_size=60)), max_size=6))
def test_any_text_gives_a_finite_unit_or_zero_row(texts):
    """Any Unicode, lone surrogates too, is embedded without an error; blank texts are zero, as unfitted."""
    rows = TextEmbedder(fitted()).embed(texts)
    for text, length in zip(texts, np.linalg.norm(rows, axis=1), strict=True):
        assert length == pytest.approx(1, abs=1e-5) if (text or "").split() else length == 0


def test_a_text_does_not_depend_on_its_batch(monkeypatch):
    """Order, neighbours, batch limits and an emptied cache change no bit."""
    texts = sample.texts()[:300]
    expected = TextEmbedder(fitted()).embed(texts)
    monkeypatch.setattr(embedding, "WORDS_CACHED_MAX", 50)
    monkeypatch.setattr(embedding, "BATCH_TEXTS_MAX", 7)
    one = TextEmbedder(fitted())
    np.testing.assert_array_equal(one.embed(texts[::-1])[::-1], expected)
    np.testing.assert_array_equal(np.concatenate([one.embed([text]) for text in texts[:20]]), expected[:20])


def test_the_longest_texts_are_still_whole_numbers():
    """A page of one word, of distinct words, of one letter: sums stay exact, so order and repeats change no bit."""
    words = [f"{first}{second}{third}" for first in "abcdefghij" for second in "klmnopqrst" for third in "uvwxyz"]
    extreme = np.full((WIDTH, DIMENSIONS), 32_767, dtype=np.int16)
    extreme[::2] = -32_767
    worst = Basis("worst", 1, np.full((3, COUNTERS), 255, dtype=np.uint8), extreme)
    texts = ["broker " * 1_170, " ".join(words * 3), "q " * 4_000]
    rows = TextEmbedder(worst).embed(texts)
    backwards = TextEmbedder(worst)
    backwards.embed(words[::-1])  # other rows of the cache, other order of summing
    np.testing.assert_array_equal(backwards.embed(texts), rows)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-6)


def test_rare_words_tell_more_than_common_ones():
    """A word that is in one text weighs more than twice one that is in every fifth; none weighs nothing."""
    texts = [f"{'broker' if n % 5 == 0 else ''} {word}" for n, word in enumerate(made_up_words(2_000))]
    made = fit_basis(texts)
    assert made is not None
    assert made.weights is not None
    counters = bases.counter_of(np.array([bases.word_code(word) for word in ("broker", texts[1].strip())], np.uint32))
    common, rare = made.weights[0, counters].tolist()
    assert rare > 2 * common > 0
    assert made.weights.min() > 0


def made_up_words(count):
    """Words without a digit, no two the same."""
    letters = str.maketrans("0123456789", "ghijklmnop")
    return [hashlib.sha256(str(n).encode()).hexdigest()[:9].translate(letters) for n in range(count)]


def test_spelling_and_script_matter_as_unfitted():
    """Inflections are near, subjects apart, and scripts that the corpus never saw still find their like."""
    assert cosine("rebalance consumer groups", "rebalancing a consumer group") > 0.5
    assert abs(cosine("rebalance consumer groups", "fix css of the login page")) < 0.25
    assert cosine("修复消费者组再平衡", "消费者组再平衡问题") > 0.4
    assert cosine("समूह पुनर्संतुलन ठीक करें", "समूह का पुनर्संतुलन") > 0.4


def test_it_keeps_up_with_the_sink():
    """At least 4,000 subjects a second on a busy machine (40,000 on an idle one), cold cache included."""
    texts = sample.texts()
    made = fitted()
    started = time.process_time()
    TextEmbedder(made).embed(texts)
    assert len(texts) / (time.process_time() - started) > 4_000


def test_a_fit_takes_seconds():
    """The sample in less than forty seconds of one core (1 s on an idle machine, 11 s seen on a crowded one)."""
    started = time.process_time()
    fit_basis(sample.texts())
    assert time.process_time() - started < 40
