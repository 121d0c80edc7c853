"""The basis (model version) of the built-in embedder, and how one is fitted to a corpus.

Invariant: a basis consists of integers, is named by the hash of its bytes, and never changes. Vectors of one basis can
be compared; those of two never are.

A text's terms are its words, their character n-grams and its word pairs. Fitted, a term counts by how rare it is in the
corpus (inverse document frequency, damped), falls on one signed coordinate of a wide space (feature hashing, Weinberger
et al. 2009), and the wide space is projected on the directions in which the corpus varies most (latent semantic
analysis, Deerwester et al. 1990: the singular vectors, found through the sum of outer products, which takes texts batch
by batch). Unfitted there are no frequencies to go by and nothing to project: `embedding` hashes into the vector itself.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Self, cast

import numpy as np
from numpy.typing import NDArray

from highwater.streams.feeds.sparse import sparse_rows
from highwater.streams.feeds.tokens import STOP_WORDS, TEXT_CHARACTERS_MAX, clean, words_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

IntArray = NDArray[np.int64]
CodeArray = NDArray[np.uint32]

DIMENSIONS = 384
# Hashed vectors without a fit: the basis of an empty store, which this name identifies.
UNFITTED_ID = "hashed-text-384.v1"
# The same of words that keep their marks: of chunks, and of texts that the local model does not read.
MARKED_ID = "hashed-text-384.v2"
# What fitted bases are called, before the hash of their bytes: those of words that keep their marks, and those before them.
FITTED_PREFIX, UNMARKED_PREFIX = "text-384.v3-", "text-384.v2-"

# Coordinates of the wide space. On 49,381 commit subjects twice as many give no better clusters, for four times the
# memory and ten times the time of the decomposition.
WIDTH = 2_048
# Counters of documents per kind of term: twice the vocabulary of those subjects.
COUNTERS = 1 << 16
GRAM_SIZES = (3, 4)
GRAMS_MAX = 64
# New words consist of known n-grams: nine of ten hashes are found here. 5 MB.
_GRAMS_CACHED_MAX = 1 << 15
# Relative weights at equal rarity: a word, one of its n-grams, and a pair. A word's n-grams make half of its squared
# length.
WORD_STEP, GRAM_STEP, PAIR_STEP = 16, 7, 8
# Weights are in sixteenths of log(documents / documents with the term) ** 0.75: undamped, shared names outweigh the
# subject (fewer points in clusters); at half, common words join unrelated texts.
WEIGHT_UNIT, WEIGHT_DAMPING = 16, 0.75
PROJECTION_MAX = 32_767

# A larger corpus is sampled: 50,000 texts determine 2,048 coordinates twenty-fold.
FIT_TEXTS_MAX = 50_000
# The beginning of a text is enough to weigh its words. Together at most 4 Mi of words: three times the commits'
# subjects. It limits memory: 0.2 GB on those, 0.7 GB if all words were different.
FIT_TEXT_CHARACTERS_MAX = 1_000
FIT_CHARACTERS_MAX = 1 << 22
# Fewer texts than this do not determine 384 directions.
FIT_TEXTS_MIN = 1_000
# A fit embeds everything again, so fits are spaced logarithmically: ten million insights see seven of them, and in
# total a third more than the corpus is embedded again. Between two at most three quarters of a corpus are unseen.
FIT_GROWTH = 4
_FIT_BATCH = 2_048

_MAGIC = struct.Struct("<4sI")
_MAGIC_NAMES = {b"HWB3": FITTED_PREFIX, b"HWB2": UNMARKED_PREFIX}
_MAGIC_NAME = b"HWB3"


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """Everything that a vector depends on besides the text.

    `weights`: uint8 (3, COUNTERS) by kind of term (word, n-gram, pair) and its hash; `projection`: int16 (WIDTH, 384),
    its columns orthogonal up to rounding. Both None in the unfitted basis. `fitted_on`: the number of distinct texts in
    the fit.
    """

    basis_id: str = UNFITTED_ID
    fitted_on: int = 0
    weights: NDArray[np.uint8] | None = None
    projection: NDArray[np.int16] | None = None

    @property
    def keeps_marks(self) -> bool:
        """Whether its words keep their marks (`tokens.words_of`)."""
        return self.basis_id != UNFITTED_ID and not self.basis_id.startswith(UNMARKED_PREFIX)

    def to_bytes(self) -> bytes:
        """Return everything but the name, little-endian: 1.8 MB; empty for the unfitted basis."""
        if self.weights is None or self.projection is None:
            return b""
        head = _MAGIC.pack(_MAGIC_NAME if self.keeps_marks else b"HWB2", self.fitted_on)
        return head + self.weights.tobytes() + self.projection.astype("<i2").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, basis_id: str | None = None) -> Self:
        """Parse a basis from bytes.

        Raises:
            ValueError: they are not a basis, or not the one with that name.
        """
        if not data:
            basis = cls()
        else:
            prefix = _MAGIC_NAMES.get(data[:4])
            if len(data) != _MAGIC.size + 3 * COUNTERS + 2 * WIDTH * DIMENSIONS or prefix is None:
                raise ValueError(f"{len(data)} bytes are not a model of this version")
            _, fitted_on = _MAGIC.unpack_from(data)
            weights = np.frombuffer(data, np.uint8, 3 * COUNTERS, _MAGIC.size).reshape(3, COUNTERS)
            projection = np.frombuffer(data, "<i2", offset=_MAGIC.size + 3 * COUNTERS).reshape(WIDTH, DIMENSIONS)
            name = prefix + hashlib.sha256(data).hexdigest()[:12]
            basis = cls(name, fitted_on, weights, projection.astype(np.int16, copy=False))
        if basis_id not in (None, basis.basis_id):
            raise ValueError(f"the bytes are those of {basis.basis_id}, not of {basis_id}")
        return basis


UNFITTED = Basis()
MARKED = Basis(MARKED_ID)


def should_fit(corpus: int, fitted_on: int | None) -> bool:
    """Return whether a corpus of this many insights is due for a fit; `fitted_on`: its size at the last fit, None
    before the first.
    """
    return corpus >= (FIT_TEXTS_MIN if fitted_on is None else FIT_GROWTH * fitted_on)


def terms_of(text: str | None, *, keeps_marks: bool = False) -> list[str]:
    """What of a text is embedded: its words, else its function words, else its runs of other characters."""
    cleaned = clean(text)
    words = words_of(cleaned, keeps_marks=keeps_marks)
    telling = [word for word in words if word not in STOP_WORDS]
    return telling or words or (text or "")[:TEXT_CHARACTERS_MAX].lower().split()


def fit_basis(texts: Iterable[str | None]) -> Basis | None:
    """Fit a basis to a corpus, from its first distinct texts up to the limits above; None if they are too few.

    Texts with the same words count once, or a bot's thousand identical lines would dominate. So pass texts in an order
    that is independent of their contents. The same texts in the same order give a basis of the same quality on any
    machine and the same bytes on machines with the same rounding of linear algebra; it is stored, never computed again.
    """
    from scipy.linalg import eigh  # noqa: PLC0415 - only who fits a basis needs it

    corpus = _Corpus(texts)
    if len(corpus) < FIT_TEXTS_MIN:
        return None
    weights = corpus.weights()
    moments = np.zeros((WIDTH, WIDTH))
    for first in range(0, len(corpus), _FIT_BATCH):
        rows = corpus.wide_rows(first, first + _FIT_BATCH, weights)
        moments += rows.T @ rows
    _, directions = eigh(moments, subset_by_index=(WIDTH - DIMENSIONS, WIDTH - 1), overwrite_a=True)
    projection = np.rint(directions[:, ::-1] * (PROJECTION_MAX / np.abs(directions).max())).astype("<i2")
    return Basis.from_bytes(_MAGIC.pack(_MAGIC_NAME, len(corpus)) + weights.tobytes() + projection.tobytes())


def word_code(word: str) -> int:
    """Return the 32-bit hash of a whole word; its low half gives the coordinate in the wide space, the high half the counter."""
    encoded = word.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=4, person=b"highwater").digest(), "little")


def gram_codes(word: str) -> list[int]:
    """Return the hashes of a word's character n-grams, its ends marked; at most 64 of each size, repeats kept."""
    marked = f"<{word[:TEXT_CHARACTERS_MAX]}>"
    grams = [marked[i : i + size] for size in GRAM_SIZES for i in range(min(GRAMS_MAX, len(marked) - size + 1))]
    return [_gram_code(gram) for gram in grams]


@lru_cache(_GRAMS_CACHED_MAX)
def _gram_code(gram: str) -> int:
    return int.from_bytes(hashlib.blake2b(gram.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "little")


def pair_codes(before: CodeArray, after: CodeArray) -> CodeArray:
    """Return the hashes of pairs of neighbouring words, in order, from the words' hashes."""
    mixed = before.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + after.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return cast("CodeArray", (mixed >> np.uint64(32)).astype(np.uint32))


def place_of(codes: CodeArray) -> IntArray:
    """Return the coordinates in the wide space for hashes."""
    return ((codes >> 1) % WIDTH).astype(np.int64)


def sign_of(codes: CodeArray) -> IntArray:
    """Return the signs for hashes, so that accidental collisions cancel on average."""
    return 1 - 2 * (codes & 1).astype(np.int64)


def counter_of(codes: CodeArray) -> IntArray:
    """Return the counters of documents for hashes."""
    return cast("IntArray", (codes >> 16).astype(np.int64))


def wide_terms(codes: CodeArray, is_whole: NDArray[np.bool_], weights: NDArray[np.uint8]) -> IntArray:
    """Return signed steps of whole words and n-grams in the wide space, one per hash."""
    steps = np.where(is_whole, WORD_STEP, GRAM_STEP)
    kinds = np.where(is_whole, 0, 1)
    return cast("IntArray", sign_of(codes) * steps * weights[kinds, counter_of(codes)])


def wide_pairs(codes: CodeArray, weights: NDArray[np.uint8]) -> IntArray:
    """Return signed steps of pairs in the wide space."""
    return cast("IntArray", sign_of(codes) * PAIR_STEP * weights[2, counter_of(codes)])


def sublinear(times: IntArray) -> IntArray:
    """1 + log(times) in sixteenths."""
    return cast("IntArray", np.rint(16 * (1 + np.log(times))).astype(np.int64))


class _Corpus:
    """Distinct texts as words by number; `_words[_ends[i - 1] : _ends[i]]` are those of text i."""

    def __init__(self, texts: Iterable[str | None]) -> None:
        number: dict[str, int] = {}
        seen: set[bytes] = set()
        words: list[NDArray[np.int32]] = []
        characters = 0
        for text in texts:
            terms = terms_of((text or "")[:FIT_TEXT_CHARACTERS_MAX], keeps_marks=True)
            numbers = np.array([number.setdefault(term, len(number)) for term in terms], dtype=np.int32)
            digest = hashlib.blake2b(numbers.tobytes(), digest_size=12).digest()
            if not terms or digest in seen:
                continue
            seen.add(digest)
            words.append(numbers)
            characters += sum(map(len, terms))
            if len(words) == FIT_TEXTS_MAX or characters > FIT_CHARACTERS_MAX:
                break
        self._texts: Sequence[NDArray[np.int32]] = words
        grams = [gram_codes(word) for word in number]
        self._codes = np.array([word_code(word) for word in number], dtype=np.uint32)
        # Each word's own hash and those of its n-grams in one run.
        self._starts = np.cumsum([0, *(len(codes) + 1 for codes in grams)])
        both = [code for word, codes in zip(self._codes.tolist(), grams, strict=True) for code in (word, *codes)]
        self._terms = np.array(both, dtype=np.uint32)
        self._is_whole = np.zeros(len(self._terms), dtype=np.bool_)
        self._is_whole[self._starts[:-1]] = True

    def __len__(self) -> int:
        return len(self._texts)

    def _counts(self, first: int, last: int) -> tuple["csr_array", IntArray, CodeArray, IntArray]:
        """Return for a batch: how often each word is in each text, and per distinct pair of a text its text, hash and count."""
        texts = self._texts[first:last]
        word = np.concatenate(texts).astype(np.int64)
        text_of = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
        keys, times = np.unique(text_of * len(self._codes) + word, return_counts=True)
        rows, columns = np.divmod(keys, len(self._codes))
        counts = sparse_rows((sublinear(times), (rows, columns)), shape=(len(texts), len(self._codes)))
        within = np.flatnonzero(text_of[1:] == text_of[:-1])
        codes = pair_codes(self._codes[word[within]], self._codes[word[within + 1]]).astype(np.int64)
        keys, times = np.unique((text_of[within] << 32) + codes, return_counts=True)
        return counts, keys >> 32, (keys & 0xFFFFFFFF).astype(np.uint32), sublinear(times)

    def weights(self) -> NDArray[np.uint8]:
        """Return the weight of each counter's terms, uint8 (3, COUNTERS)."""
        documents = np.zeros((3, COUNTERS), dtype=np.int64)
        grams = np.flatnonzero(~self._is_whole)
        owner = np.repeat(np.arange(len(self._codes)), np.diff(self._starts))[grams]
        places = counter_of(self._terms[grams])
        spelled = sparse_rows((np.ones(len(grams)), (owner, places)), shape=(len(self._codes), COUNTERS))
        for first in range(0, len(self), _FIT_BATCH):
            counts, _, pairs, _ = self._counts(first, first + _FIT_BATCH)
            documents[0] += np.bincount(counter_of(self._codes[counts.indices]), minlength=COUNTERS)
            documents[1] += np.bincount((counts @ spelled).indices, minlength=COUNTERS)
            documents[2] += np.bincount(counter_of(pairs), minlength=COUNTERS)
        rarity = np.log((len(self) + 1) / (np.minimum(documents, len(self)) + 1))
        return cast(
            "NDArray[np.uint8]", np.clip(np.rint(WEIGHT_UNIT * rarity**WEIGHT_DAMPING), 1, 255).astype(np.uint8)
        )

    def wide_rows(self, first: int, last: int, weights: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return unit vectors of a batch in the wide space, float32 (n, WIDTH)."""
        counts, text_of, codes, times = self._counts(first, last)
        steps = wide_terms(self._terms, self._is_whole, weights)
        spelled = sparse_rows((steps, place_of(self._terms), self._starts), shape=(len(self._codes), WIDTH))
        pairs = (times * wide_pairs(codes, weights), (text_of, place_of(codes)))
        wide = (counts @ spelled + sparse_rows(pairs, shape=(counts.shape[0], WIDTH))).toarray().astype(np.float32)
        return cast("NDArray[np.float32]", wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1.0))
