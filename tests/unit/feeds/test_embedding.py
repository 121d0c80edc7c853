"""The built-in embedder, and the check of embeddings from outside."""

import hashlib
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.streams.feeds import embedding
from highwater.streams.feeds.basis import UNFITTED_ID
from highwater.streams.feeds.embedding import (
    DIMENSIONS,
    TextEmbedder,
    validate_embedding,
    vector_from_bytes,
)
from highwater.streams.feeds.tokens import TEXT_CHARACTERS_MAX, words_of
from tests import ROOT
from tests.unit.feeds import sample

PROJECT = ROOT
GOLDEN = [
    "Fix KAFKA-17415: avoid overflow",
    "",
    "日本語のテキスト",
    "parseTopicPartition in foo/bar_baz.py 🎉",
    "1.2.3",
]
GOLDEN_DIGEST = "6d6d3de285c8f69daaedf78308cb4e6498717a3125774a41f4863178bc7e4146"


def embed(*texts: str | None):
    """Rows of a fresh embedder."""
    return TextEmbedder().embed(texts)


def cosine(one, other):
    """How near two texts are, -1..1."""
    first, second = embed(one, other)
    return float(first @ second)


def test_the_model_id_stands_for_these_very_bits():
    """Any change of output fails here; then the id needs a new version, and this digest is computed again."""
    assert TextEmbedder().basis_id == UNFITTED_ID == "hashed-text-384.v1"
    assert hashlib.sha256(embed(*GOLDEN).astype("<f4").tobytes()).hexdigest() == GOLDEN_DIGEST


def test_another_process_makes_the_same_bits():
    """No hash seed, environment or earlier text enters a vector."""
    program = (
        "from highwater.streams.feeds.embedding import TextEmbedder as E; from tests.unit.feeds.test_embedding import *;"
        "e = E(); e.embed(['other words before']);"
        "print(hashlib.sha256(e.embed(GOLDEN).astype('<f4').tobytes()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROJECT,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": str(PROJECT)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == GOLDEN_DIGEST


def test_rows_have_unit_length_and_texts_without_content_are_zero():
    """Real subjects all have length 1; None, empty and blank texts are the zero vector."""
    np.testing.assert_allclose(np.linalg.norm(sample.vectors(), axis=1), 1.0, atol=1e-6)
    assert not embed("", None, " \n\t\u3000").any()
    assert embed().shape == (0, DIMENSIONS)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(max_size=60)), max_size=6))
def test_any_text_gives_a_finite_unit_or_zero_row(texts):
    """Any Unicode, lone surrogates too, is embedded without an error; only blank texts are zero."""
    rows = TextEmbedder().embed(texts)
    assert rows.dtype == np.float32
    assert rows.shape == (len(texts), DIMENSIONS)
    for text, length in zip(texts, np.linalg.norm(rows, axis=1), strict=True):
        if not (text or "").split():
            assert length == 0
        else:
            assert length == pytest.approx(1, abs=1e-5) or length == 0


def test_a_text_does_not_depend_on_its_batch(monkeypatch):
    """Order, neighbours, batch limits and an emptied cache change no bit."""
    texts = sample.texts()[:300]
    expected = TextEmbedder().embed(texts)
    monkeypatch.setattr(embedding, "WORDS_CACHED_MAX", 50)
    monkeypatch.setattr(embedding, "BATCH_TEXTS_MAX", 7)
    one = TextEmbedder()
    np.testing.assert_array_equal(one.embed(texts[::-1])[::-1], expected)
    np.testing.assert_array_equal(np.concatenate([one.embed([text]) for text in texts[:20]]), expected[:20])
    assert len(one._row_of_word) < 100


def test_vectors_are_near_where_texts_are_about_the_same():
    """Spelling, case, numbers, versions, ids and filler words matter little; the subject matters."""
    assert cosine("release: 2.20.10", "Release 2.28.0") == pytest.approx(1, abs=1e-6)
    assert cosine("parseTopicPartition", "parse_topic_partition") == pytest.approx(1, abs=1e-6)
    assert cosine("KAFKA-17415 overflow of the timestamp (#17026)", "overflow of timestamp") > 0.99
    assert cosine("\uff34\uff49\uff4d\uff45\uff53\uff54\uff41\uff4d\uff50 overflow", "timestamp overflow") > 0.99
    assert cosine("rebalance consumer groups", "rebalancing a consumer group") > 0.5
    assert abs(cosine("rebalance consumer groups", "fix css of the login page")) < 0.25
    assert cosine("修复消费者组再平衡", "消费者组再平衡问题") > 0.5


def test_word_order_and_repeats_count_a_little():
    """Word pairs tell `a before b` from `b before a`; a word said fifty times does not drown the rest."""
    assert 0.6 < cosine("kafka streams broker", "broker streams kafka") < 0.999
    assert cosine("broker timeout", "broker " * 50 + "timeout") > 0.6


def test_five_megabytes_cost_no_more_than_the_first_page():
    """Only the first 8,192 characters are read, so what follows changes nothing and costs nothing."""
    page = "lorem ipsum dolor " * 1000
    first, longer = embed(page[:TEXT_CHARACTERS_MAX], page[:TEXT_CHARACTERS_MAX] + "other words " * 400_000)
    np.testing.assert_array_equal(first, longer)
    started = time.perf_counter()
    embed("x" * 5_000_000, "a b " * 1_250_000, "aB" * 2_500_000, "語" * 5_000_000, "\ufdfa" * 2_000_000)
    assert time.perf_counter() - started < 5


def test_it_keeps_up_with_the_sink():
    """At least 4,000 subjects a second on a busy machine (20,000 on an idle one), cold cache included."""
    texts = sample.texts()
    started = time.process_time()
    TextEmbedder().embed(texts)
    assert len(texts) / (time.process_time() - started) > 4_000


def test_numbers_versions_and_hashes_are_no_words():
    """`v2`, `3.11`, `0b1` name one thing; `utf8`, `http2`, `kafka` are words."""
    assert words_of("v2 3.11 0b1 utf8 http2 kafka x") == ["utf8", "http2", "kafka", "x"]


def test_a_good_embedding_comes_back_as_sent():
    """Little-endian float32 bytes, read in the machine's own order, not rescaled."""
    sent = np.arange(4, dtype="<f4")
    assert vector_from_bytes(sent.tobytes(), 4).tolist() == [0, 1, 2, 3]
    validate_embedding(sent.tobytes(), 4)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "embedding has 0 bytes, 4 float32 values take 16"),
        (b"\0" * 17, "embedding has 17 bytes, 4 float32 values take 16"),
        (np.array([1, np.nan, 0, 0], "<f4").tobytes(), "not finite"),
        (np.array([1, np.inf, 0, 0], "<f4").tobytes(), "not finite"),
        (np.array([0, 0, -0.0, 0], "<f4").tobytes(), "all zero"),
    ],
)
def test_a_bad_embedding_is_refused_with_its_reason(data, reason):
    """Wrong length, NaN, infinity and no direction each raise one clear line."""
    with pytest.raises(ValueError, match=reason):
        validate_embedding(data, 4)
