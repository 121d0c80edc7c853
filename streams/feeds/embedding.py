"""The built-in embedder and the check of embeddings from outside. Invariant: a text's vector depends only on the text
and on the basis: no download, the same bits on every machine and in every process.

A text is the sum of its words' vectors and of hashed word pairs (feature hashing, Weinberger et al. 2009). A word's
vector is the sum of signed hashed coordinates of the word and of its character n-grams, so that `partition` and
`partitions` are near each other. Repeats count less than linearly; function words do not count unless nothing else is
there. In a fitted basis terms count by their rarity in the corpus and are projected (`basis`); as that is linear, a
word is projected once and kept. In the unfitted one words that any change note uses count little, longer words a little
more, as rarer ones do.

Everything up to the root is whole numbers small enough to be held exactly (float32 unfitted, float64 fitted: a word's
numbers stay below 2^33, a text's below 2^50), so no order of summing and no fused multiply-add changes a bit.
"""

import threading
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain, islice
from typing import cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from highwater.streams.feeds.basis import (
    DIMENSIONS,
    UNFITTED,
    WIDTH,
    Basis,
    gram_codes,
    pair_codes,
    place_of,
    sublinear,
    wide_pairs,
    wide_terms,
    word_code,
)
from highwater.streams.feeds.sparse import sparse_rows
from highwater.streams.feeds.terms import terms_of_all
from highwater.streams.feeds.tokens import FAINT_WORDS, TEXT_CHARACTERS_MAX

Float32Array = NDArray[np.float32]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# A word's vector is 3 KB, 1.5 KB unfitted. Past this many the table is emptied, which costs time, not results. A batch
# adds at most one word per character, so the table has room for as many again: 100 MB at worst, 20 MB in practice.
WORDS_CACHED_MAX = 16_384
BATCH_CHARACTERS_MAX = 16_384
BATCH_TEXTS_MAX = 1_024

# For the unfitted basis.
WORD_COORDINATES = 6
WORD_STEP = 40  # each coordinate of the whole word: +-40, together a length of 98
GRAMS_LENGTH = 80.0  # all n-grams of a word together: two fifths of its squared length
# Weights of words, in sixteenths.
WEIGHT, WEIGHT_FAINT, WEIGHT_SHORT, WEIGHT_LONG = 16, 5, 10, 20
LONG_WORD_CHARACTERS = 7
PAIR_STEP = 26  # each of a pair's two coordinates, times the lesser of the two weights

# A text's numbers are cut to this many bits before they are squared: then 384 squares sum to less than 2^53, exactly.
_SQUARED_BITS = 22


class TextEmbedder:
    """Converts texts to unit vectors of one basis. Its only state is a cache of word vectors; threads take turns."""

    dimensions = DIMENSIONS

    def __init__(self, basis: Basis = UNFITTED) -> None:
        self.basis_id = basis.basis_id
        self._keeps_marks = basis.keeps_marks
        self._words: _HashedWords | _ProjectedWords
        if basis.weights is None or basis.projection is None:
            self._words = _HashedWords()
        else:
            self._words = _ProjectedWords(basis.weights, basis.projection)
        self._row_of_word = _Rows()
        self._turn = threading.Lock()

    def embed(self, texts: Sequence[str | None]) -> Float32Array:
        """Unit vectors, float32 (n, 384), one row per text.

        A text of spaces only, an empty one and None give the zero vector: they resemble nothing. Only the first
        `TEXT_CHARACTERS_MAX` characters count. Source: R0.36 (embeddings come first).
        """
        vectors = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
        with self._turn:
            for first, last in _batches(texts):
                vectors[first:last] = self._embed_batch(texts[first:last])
        return vectors

    def _embed_batch(self, texts: Sequence[str | None]) -> Float32Array:
        if len(self._row_of_word) > WORDS_CACHED_MAX:
            self._row_of_word.clear()
        terms, text_of = terms_of_all(texts, keeps_marks=self._keeps_marks)
        first = len(self._row_of_word)
        word = np.fromiter(map(self._row_of_word.__getitem__, terms), dtype=np.int64, count=len(terms))
        if len(self._row_of_word) > first:
            self._words.learn(first, list(islice(reversed(self._row_of_word), len(self._row_of_word) - first))[::-1])
        sums = self._words.pair_sums(word, text_of, len(texts))
        sums += self._word_sums(word, text_of, len(texts))
        return _unit(sums)

    def _word_sums(self, word: IntArray, text_of: IntArray, count: int) -> FloatArray | Float32Array:
        used = max(len(self._row_of_word), 1)
        vectors = self._words.vectors[:used]
        keys, times = np.unique(text_of * used + word, return_counts=True)
        weights = (self._words.weights[keys % used] * sublinear(times) // 16).astype(vectors.dtype)
        starts = np.searchsorted(keys, np.arange(count + 1) * used)
        matrix = sparse_rows((weights, keys % used, starts), shape=(count, used))
        return cast("FloatArray | Float32Array", matrix @ vectors)


class _Rows(dict[str, int]):
    """Maps words to rows: an unknown word gets the next row."""

    def __missing__(self, word: str) -> int:
        row = self[word] = len(self)
        return row


class _HashedWords:
    """The words of the unfitted basis: their vectors are hashed, their weights are rules of thumb."""

    def __init__(self) -> None:
        self.vectors = np.empty((WORDS_CACHED_MAX + BATCH_CHARACTERS_MAX, DIMENSIONS), dtype=np.float32)
        self.weights = np.empty(len(self.vectors), dtype=np.int64)
        self._codes = np.empty(len(self.vectors), dtype=np.uint64)

    def learn(self, first: int, words: Sequence[str]) -> None:
        """Store the data of words, in rows from `first` on."""
        rows = slice(first, first + len(words))
        self.vectors[rows] = word_vectors(words)
        self.weights[rows] = [word_weight(word) for word in words]
        self._codes[rows] = [crc32(word.encode("utf-8", "surrogatepass")) for word in words]

    def pair_sums(self, word: IntArray, text_of: IntArray, count: int) -> FloatArray:
        """Return what a batch's word pairs add to its texts' vectors, integers (count, 384)."""
        within = np.flatnonzero(text_of[1:] == text_of[:-1])
        before, after, owner = word[within], word[within + 1], text_of[within].astype(np.uint64)
        mixed = (self._codes[before] * np.uint64(0x9E3779B1) + self._codes[after]) % np.uint64(1 << 32)
        keys, chosen, times = np.unique((owner << np.uint64(32)) + mixed, return_index=True, return_counts=True)
        steps = PAIR_STEP * np.minimum(self.weights[before], self.weights[after])[chosen] * sublinear(times) // 16
        codes = (keys % np.uint64(1 << 32)) * np.uint64(0x9E3779B97F4A7C15)
        rows = (keys >> np.uint64(32)).astype(np.int64) * DIMENSIONS
        halves = codes >> np.array([[20], [42]], dtype=np.uint64)
        signs = 1 - 2 * (halves & np.uint64(1)).astype(np.int64)
        places = rows + ((halves >> np.uint64(1)) % np.uint64(DIMENSIONS)).astype(np.int64)
        return _sums_at(places.ravel(), (signs * steps).ravel(), count)


class _ProjectedWords:
    """The words of a fitted basis: their vectors include their rarity, so each has weight one."""

    def __init__(self, weights: NDArray[np.uint8], projection: NDArray[np.int16]) -> None:
        self.vectors = np.empty((WORDS_CACHED_MAX + BATCH_CHARACTERS_MAX, DIMENSIONS))
        self.weights = np.full(len(self.vectors), 16, dtype=np.int64)
        self._codes = np.empty(len(self.vectors), dtype=np.uint32)
        self._rarity = weights
        self._projection = projection.astype(np.float64)

    def learn(self, first: int, words: Sequence[str]) -> None:
        """Store the data of words, in rows from `first` on."""
        terms = [[word_code(word), *gram_codes(word)] for word in words]
        starts = np.cumsum([0, *map(len, terms)])
        codes = np.fromiter(chain.from_iterable(terms), dtype=np.uint32, count=starts[-1])
        is_whole = np.zeros(len(codes), dtype=np.bool_)
        is_whole[starts[:-1]] = True
        steps = wide_terms(codes, is_whole, self._rarity).astype(np.float64)
        rows = slice(first, first + len(words))
        self.vectors[rows] = sparse_rows((steps, place_of(codes), starts), shape=(len(words), WIDTH)) @ self._projection
        self._codes[rows] = codes[starts[:-1]]

    def pair_sums(self, word: IntArray, text_of: IntArray, count: int) -> FloatArray:
        """Return what a batch's word pairs add to its texts' vectors, integers (count, 384)."""
        within = np.flatnonzero(text_of[1:] == text_of[:-1])
        codes = pair_codes(self._codes[word[within]], self._codes[word[within + 1]]).astype(np.int64)
        keys, times = np.unique((text_of[within] << 32) + codes, return_counts=True)
        distinct = (keys & 0xFFFFFFFF).astype(np.uint32)
        steps = (sublinear(times) * wide_pairs(distinct, self._rarity)).astype(np.float64)
        starts = np.searchsorted(keys >> 32, np.arange(count + 1))
        matrix = sparse_rows((steps, place_of(distinct), starts), shape=(count, WIDTH))
        return np.asarray(matrix @ self._projection, dtype=np.float64)


def word_vectors(words: Sequence[str]) -> FloatArray:
    """Return the coordinates of words in the unfitted basis, integers (n, 384): the word and its n-grams."""
    encoded = [word.encode("utf-8", "surrogatepass") for word in words]
    digests = [blake2b(one, digest_size=4 * WORD_COORDINATES, person=b"highwater").digest() for one in encoded]
    grams = [gram_codes(word) for word in words]
    counts = np.fromiter(map(len, grams), dtype=np.int64, count=len(words))
    steps = np.maximum(1, np.rint(GRAMS_LENGTH / np.sqrt(np.maximum(1, counts)))).astype(np.int64)
    of_words = np.frombuffer(b"".join(digests), dtype="<u4").astype(np.int64)
    of_grams = np.fromiter(chain.from_iterable(grams), dtype=np.int64, count=counts.sum())
    codes = np.concatenate((of_words, of_grams))
    lengths = np.concatenate((np.full(len(of_words), WORD_STEP), np.repeat(steps, counts)))
    number = np.arange(len(words))
    owner = np.concatenate((np.repeat(number, WORD_COORDINATES), np.repeat(number, counts)))
    places = owner * DIMENSIONS + (codes >> 1) % DIMENSIONS
    return _sums_at(places, np.where(codes & 1, lengths, -lengths), len(words))


def _sums_at(places: IntArray, steps: IntArray, count: int) -> FloatArray:
    """Return the sums of integers by their places in an array of (count, 384)."""
    sums = np.bincount(places, weights=steps, minlength=count * DIMENSIONS)
    # For an empty input NumPy returns integers.
    return cast("FloatArray", sums.astype(np.float64, copy=False).reshape(count, DIMENSIONS))


def word_weight(word: str) -> int:
    """Return the weight of a word without a corpus, in sixteenths."""
    if word in FAINT_WORDS:
        return WEIGHT_FAINT
    if len(word) <= 2 and word.isascii():
        return WEIGHT_SHORT
    return WEIGHT_LONG if len(word) >= LONG_WORD_CHARACTERS else WEIGHT


def validate_embedding(embedding: bytes, dimensions: int) -> None:
    """Check an embedding from outside: little-endian float32, finite, not all zero.

    Raises:
        ValueError: one line with the reason; the sink dead-letters with it.
    """
    vector_from_bytes(embedding, dimensions)


def vector_from_bytes(embedding: bytes, dimensions: int) -> Float32Array:
    """Return the vector float32 (dimensions,) in native order from bytes; not rescaled.

    Raises:
        ValueError: the length is wrong, a value is not finite, or the vector has no direction.
    """
    if len(embedding) != 4 * dimensions:
        raise ValueError(f"embedding has {len(embedding)} bytes, {dimensions} float32 values take {4 * dimensions}")
    vector = np.frombuffer(embedding, dtype="<f4").astype(np.float32)
    if not np.isfinite(vector).all():
        raise ValueError("embedding holds a value that is not finite")
    length = float(np.sqrt(np.square(vector, dtype=np.float64).sum()))
    if length == 0.0:
        raise ValueError("embedding is all zero")
    return vector


def _batches(texts: Sequence[str | None]) -> Iterator[tuple[int, int]]:
    """Yield consecutive (first, last) of at most `BATCH_TEXTS_MAX` texts and `BATCH_CHARACTERS_MAX` characters."""
    first, characters = 0, 0
    for i, text in enumerate(texts):
        length = min(len(text or ""), TEXT_CHARACTERS_MAX)
        if i > first and (characters + length > BATCH_CHARACTERS_MAX or i - first == BATCH_TEXTS_MAX):
            yield first, i
            first, characters = i, 0
        characters += length
    if first < len(texts):
        yield first, len(texts)


def _unit(sums: FloatArray) -> Float32Array:
    """Scale rows of integers to length 1, zero rows unchanged: float32 (n, 384)."""
    greatest = np.maximum(sums.max(axis=1, initial=0.0), -sums.min(axis=1, initial=0.0))
    _, exponents = np.frexp(greatest)
    if exponents.max(initial=0) > _SQUARED_BITS:
        # By a power of two, which changes no bit.
        scale = np.ldexp(1.0, -np.maximum(exponents - _SQUARED_BITS, 0))
        sums = np.rint(sums * scale[:, None])
    norms = np.sqrt(np.einsum("ij,ij->i", sums, sums))
    unit = np.empty(sums.shape, dtype=np.float32)
    np.divide(sums, np.maximum(norms, 1.0)[:, None], out=unit, casting="same_kind")
    return unit
