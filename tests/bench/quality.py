"""The quality of clusters: coverage, diversity of their words, agreement with given classes. Invariant: every
system is scored by the same code on the same texts, and a missing word or point counts against it.

- A *member* of a cluster has a membership of at least 0.3 in it; everything else is noise, before any soft assignment.
- *Tokens* are those of scikit-learn's `CountVectorizer` as it comes, for all systems: the text in lower case, runs of two
  or more letters, digits or underscores.
- *Topic diversity* (Dieng et al. 2020): distinct words as a share of all topics' first ten.
- *Word coverage*: the share of a topic's members that hold one of its words, the mean over its words and then over topics.
- *Class-based TF-IDF* (Grootendorst 2022): tf x ln(1 + A / f), tf being a word's share of its class's tokens, f its
  count in all classes and A the mean number of tokens of a class. Noise is a class too, as BERTopic has it.

    from tests.bench.quality import evaluate
    evaluate(labels, probabilities, texts)  # the words by class-based TF-IDF
    evaluate(labels, probabilities, texts, words={0: ["rack", "aware"], 1: [...]})  # the system's own
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

NOISE = -1
MEMBERSHIP_MIN = 0.3
COVERAGES = (0.3, 0.5, 0.7)
TOP_WORDS = 10

IntArray = NDArray[np.intp]
FloatArray = NDArray[np.float64]
_TOKEN = re.compile(r"\b\w\w+\b")


def evaluate(
    labels: NDArray[Any],
    probabilities: NDArray[Any],
    texts: Sequence[str | None],
    words: Mapping[int, Sequence[str]] | None = None,
    *,
    top: int = TOP_WORDS,
) -> dict[str, float]:
    """How good these clusters of n texts are, by the definitions of this module.

    `labels` int (n,) with -1 for noise, `probabilities` float (n,) in 0..1 (NaN, which hdbscan gives equal points, is 1),
    `words` by label, best first; None takes class-based TF-IDF's. Gives `clusters`, `noise` and `coverage_30/_50/_70`
    (shares of n), `diversity`, `words` (mean per topic, at most `top`) and `words_unknown` (share of them that no text
    holds). Without a topic, `diversity` is NaN.

    Raises:
        ValueError: the lengths differ.
    """
    if not len(labels) == len(probabilities) == len(texts):
        raise ValueError("labels, probabilities and texts differ in length")
    members = members_of(labels, probabilities)
    chosen = class_words(members, texts, top=top) if words is None else words
    topics = {int(one): tuple(chosen.get(int(one), ()))[:top] for one in np.unique(members[members != NOISE])}
    listed = [word for topic in topics.values() for word in topic]
    held = _read(tuple(texts)).number_of
    return {
        **coverage(labels, probabilities),
        "diversity": diversity(topics),
        "words": len(listed) / len(topics) if topics else 0.0,
        "words_unknown": sum(word not in held for word in listed) / len(listed) if listed else 0.0,
    }


def members_of(labels: NDArray[Any], probabilities: NDArray[Any]) -> IntArray:
    """The labels with everything below `MEMBERSHIP_MIN` as noise: int (n,). A NaN probability counts as 1."""
    member = np.nan_to_num(np.asarray(probabilities, dtype=np.float64), nan=1.0) >= MEMBERSHIP_MIN
    return np.where(member, np.asarray(labels, dtype=np.intp), NOISE)


def coverage(labels: NDArray[Any], probabilities: NDArray[Any]) -> dict[str, float]:
    """`clusters` with a member, `noise` and `coverage_<percent>` as shares of n: in a cluster with at least that membership."""
    members = members_of(labels, probabilities)
    strength = np.where(np.asarray(labels) == NOISE, 0.0, np.nan_to_num(probabilities, nan=1.0))
    n = max(1, len(members))
    return {
        "clusters": float(len(np.unique(members[members != NOISE]))),
        "noise": float((members == NOISE).sum()) / n,
        **{f"coverage_{level * 100:.0f}": float((strength >= level).sum()) / n for level in COVERAGES},
    }


def word_coverage(members: IntArray, texts: Sequence[str | None], topics: Mapping[int, Sequence[str]]) -> float:
    """How much of its members a topic's words stand in, 0..1; NaN without a topic that has words.

    `members` int (n,) as `members_of` gives them.
    """
    corpus = _read(tuple(texts))
    shares = []
    for label, words in topics.items():
        own = frozenset(np.flatnonzero(members == label).tolist())
        if own and words:
            held = [len(corpus.texts_with(word) & own) / len(own) for word in words]
            shares.append(math.fsum(held) / len(held))
    return math.fsum(shares) / len(shares) if shares else math.nan


def diversity(topics: Mapping[int, Sequence[str]]) -> float:
    """Distinct words as a share of all topics' words, 0..1; NaN without a word."""
    listed = [word for words in topics.values() for word in words]
    return len(set(listed)) / len(listed) if listed else math.nan


def class_words(
    labels: NDArray[Any], texts: Sequence[str | None], *, top: int = TOP_WORDS
) -> dict[int, tuple[str, ...]]:
    """The first `top` words of each cluster by class-based TF-IDF, best first; ties in the order of the alphabet.

    `labels` int (n,) as they are: noise is a class that gets no words. Source: Grootendorst 2022.
    """
    corpus = _read(tuple(texts))
    classes, class_of = np.unique(np.asarray(labels), return_inverse=True)
    belongs = csr_array(
        (np.ones(len(class_of)), (class_of, np.arange(len(class_of)))), shape=(len(classes), len(texts))
    )
    counts = csr_array(belongs @ corpus.counts)
    everywhere = counts.sum(axis=0)
    average = counts.sum() / max(1, len(classes))
    found = {}
    for row, label in enumerate(classes.tolist()):
        if label == NOISE:
            continue
        places = slice(counts.indptr[row], counts.indptr[row + 1])
        word, times = counts.indices[places], counts.data[places]
        scores = times / max(times.sum(), 1) * np.log(1 + average / everywhere[word])
        # The vocabulary is numbered in the order of the alphabet.
        found[label] = tuple(corpus.vocabulary[word[i]] for i in np.lexsort((word, -scores))[:top])
    return found


def agreement(truth: NDArray[Any], labels: NDArray[Any]) -> float:
    """The adjusted Rand index (Hubert and Arabie 1985) of two labellings; noise is a label like any other."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(truth, labels))


def softly_assigned(vectors: NDArray[Any], labels: NDArray[Any]) -> IntArray:
    """The labels with each noise point in the cluster whose centroid is nearest by cosine: int (n,).

    One procedure for every system, on the vectors that all of them were given; a centroid is the mean of its members'
    unit vectors. Without a cluster all stays noise. Ties go to the lower label.
    """
    result = np.asarray(labels, dtype=np.intp).copy()
    clusters = np.unique(result[result != NOISE])
    if not len(clusters):
        return result
    unit = _unit(np.asarray(vectors, dtype=np.float64))
    centroids = _unit(np.stack([unit[result == cluster].mean(axis=0) for cluster in clusters]))
    noise = result == NOISE
    result[noise] = clusters[(unit[noise] @ centroids.T).argmax(axis=1)]
    return result


def tokens_of(text: str | None) -> list[str]:
    """The tokens of a text, in order."""
    return _TOKEN.findall((text or "").lower())


@dataclass(frozen=True, slots=True)
class _Corpus:
    """The tokens of n texts: `counts` (n, words), the words in alphabetical order, and who holds which."""

    counts: csr_array[Any, Any]
    vocabulary: tuple[str, ...]
    number_of: Mapping[str, int]
    holders: dict[str, frozenset[int]]

    def texts_with(self, word: str) -> frozenset[int]:
        """The texts that hold a word, kept once looked up."""
        if word not in self.holders:
            number = self.number_of.get(word)
            rows = () if number is None else self.counts[:, [number]].nonzero()[0].tolist()
            self.holders[word] = frozenset(rows)
        return self.holders[word]


@lru_cache(maxsize=4)  # an experiment scores many clusterings of a few data sets
def _read(texts: tuple[str | None, ...]) -> _Corpus:
    found = [Counter(tokens_of(text)) for text in texts]
    vocabulary = tuple(sorted(set().union(*found)))
    number_of = {word: i for i, word in enumerate(vocabulary)}
    columns = [number_of[word] for counts in found for word in counts]
    rows = np.repeat(np.arange(len(texts)), [len(counts) for counts in found])
    times = np.array([times for counts in found for times in counts.values()], dtype=np.float64)
    counts = csr_array((times, (rows, np.array(columns, dtype=np.intp))), shape=(len(texts), len(vocabulary)))
    return _Corpus(counts, vocabulary, number_of, {})


def _unit(rows: FloatArray) -> FloatArray:
    lengths = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    return rows / np.where(lengths > 0, lengths, 1.0)
