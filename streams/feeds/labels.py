"""Owns how a cluster is told to a reader: its keywords, a phrase as its label, the insight that stands for it.

Its law: the same clusters always read the same, every cluster has a label and a keyword whatever its texts hold, and
a label is a phrase that the texts themselves contain.

Keywords are weighed by class-based TF-IDF (Grootendorst 2022): how often in this cluster's texts, against how often in
all clusters' texts. The label is the run of words that most of the cluster's distinct texts share, as they write it.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, count

import numpy as np
from numpy.typing import NDArray

from streams.feeds.phrases import Phrases
from streams.feeds.tokens import FAINT_WORDS, STOP_WORDS, TEXT_CHARACTERS_MAX, clean, words_of

KEYWORDS_MAX = 6
LABEL_CHARACTERS_MAX = 72
CLUSTER_ID_CHARACTERS = 12
# Texts read for words and phrases per cluster: evenly spread over it; a thousand settle what most of them say.
TEXTS_READ_MAX = 1_000


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """One cluster as a reader gets it. `insight_ids` are in the order of the input; `keywords` best first."""

    cluster_id: str
    label: str
    keywords: tuple[str, ...]
    insight_ids: tuple[str, ...]
    representative_id: str
    size: int


def describe_clusters(
    labels: NDArray[np.intp],
    probabilities: NDArray[np.float64],
    vectors: NDArray[np.float32],
    texts: Sequence[str | None],
    insight_ids: Sequence[str],
) -> list[ClusterDescription]:
    """Describe every cluster, the largest first, then by representative id.

    `labels` int (n,) with -1 for noise, `probabilities` float64 (n,) in 0..1, `vectors` float32 (n, d), `texts` and
    `insight_ids` of length n. Without one readable word the keyword is the first characters of the representative's
    text, or its id. Two clusters never share a label. Source: R0.36; Grootendorst 2022.

    Raises:
        ValueError: the lengths differ.
    """
    if not len(labels) == len(probabilities) == len(vectors) == len(texts) == len(insight_ids):
        raise ValueError("labels, probabilities, vectors, texts and insight_ids differ in length")
    members = [np.flatnonzero(labels == cluster) for cluster in range(int(labels.max(initial=-1)) + 1)]
    members = [rows for rows in members if len(rows)]
    words = [_word_counts([texts[row] for row in _spread(rows)]) for rows in members]
    everywhere: Counter[str] = Counter()
    for counts in words:
        everywhere.update(counts)
    average = sum(everywhere.values()) / max(1, len(members))
    described = []
    for rows, counts in zip(members, words, strict=True):
        representative = _representative(rows, probabilities, vectors, insight_ids)
        keywords = _keywords(counts, everywhere, average)
        label = Phrases.of([texts[row] for row in _spread(rows)]).label(keywords, LABEL_CHARACTERS_MAX)
        fallback = _plain(texts[representative]) or f"Insight {insight_ids[representative]}"
        described.append(
            ClusterDescription(
                cluster_id=cluster_id_of([insight_ids[int(row)] for row in rows]),
                label=_with_keywords(label, keywords) if label else fallback,
                keywords=keywords or (fallback.lower(),),
                insight_ids=tuple(insight_ids[int(row)] for row in rows),
                representative_id=insight_ids[representative],
                size=len(rows),
            )
        )
    described.sort(key=lambda one: (-one.size, one.representative_id, one.cluster_id))
    return _told_apart(described)


def cluster_id_of(insight_ids: Sequence[str]) -> str:
    """An id from the content alone: 12 hex characters of SHA-256 over the sorted ids, each ended by a zero byte."""
    digest = hashlib.sha256()
    for insight_id in sorted(insight_ids):
        digest.update(insight_id.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()[:CLUSTER_ID_CHARACTERS]


def _spread(rows: NDArray[np.intp]) -> list[int]:
    places = np.linspace(0, len(rows) - 1, min(len(rows), TEXTS_READ_MAX)).astype(np.intp)
    return [int(row) for row in rows[places]]


def _word_counts(texts: Sequence[str | None]) -> Counter[str]:
    """In how many texts each telling word occurs; faint words only where there is no other."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update({word for word in words_of(clean(text)) if word not in STOP_WORDS and len(word) > 1})
    telling = Counter({word: times for word, times in counts.items() if word not in FAINT_WORDS})
    return telling or counts


def _keywords(counts: Counter[str], everywhere: Counter[str], average: float) -> tuple[str, ...]:
    scores = {word: times * math.log(1 + average / everywhere[word]) for word, times in counts.items()}
    best = sorted(scores, key=lambda word: (-scores[word], word))
    chosen: list[str] = []
    for word in best:
        if len(chosen) == KEYWORDS_MAX or (chosen and scores[word] < 0.15 * scores[chosen[0]]):
            break
        if not any(_is_form(word, other) for other in chosen):
            chosen.append(word)
    return tuple(chosen)


def _is_form(word: str, other: str) -> bool:
    """Whether two words are forms of one: `update`, `updates`, `updated`."""
    shorter, longer = sorted((word, other), key=len)
    return len(shorter) > 3 and longer.startswith(shorter[:-1]) and len(longer) - len(shorter) <= 3


def _representative(
    rows: NDArray[np.intp],
    probabilities: NDArray[np.float64],
    vectors: NDArray[np.float32],
    insight_ids: Sequence[str],
) -> int:
    """The row closest to the centroid, which counts each row by its probability; ties by insight id."""
    own = vectors[rows].astype(np.float64)
    weights = np.nan_to_num(probabilities[rows], nan=1.0)
    weights = weights if weights.sum() > 0 else np.ones(len(rows))
    centroid = (own * weights[:, None]).sum(axis=0) / weights.sum()
    # Rounded, so that equal vectors tie whatever the order of summing.
    distances = np.round(np.square(own - centroid).sum(axis=1), 9)
    return min((int(row) for row in rows[distances == distances.min()]), key=lambda row: insight_ids[row])


def _plain(text: str | None) -> str:
    """The beginning of a text on one line."""
    return " ".join((text or "")[:TEXT_CHARACTERS_MAX].split())[:LABEL_CHARACTERS_MAX].strip()


def _with_keywords(label: str, keywords: tuple[str, ...]) -> str:
    """A label of one word says little; two keywords beside it say what about."""
    more = [word for word in keywords if word not in label.lower()][:2]
    return f"{label}: {', '.join(more)}" if more and " " not in label else label


def _told_apart(described: list[ClusterDescription]) -> list[ClusterDescription]:
    """The same descriptions with distinct labels: a later namesake adds its own keyword, else a number."""
    seen: dict[str, frozenset[str]] = {}
    result = []
    for one in described:
        label, taken = one.label, seen.get(one.label.lower())
        if taken is not None:
            own = [word for word in one.keywords if word not in taken and word not in label.lower()]
            candidates = chain(own, map(str, count(2)))
            label = next(told for mark in candidates if (told := f"{one.label} ({mark})").lower() not in seen)
        seen[label.lower()] = frozenset(one.keywords)
        result.append(replace(one, label=label))
    return result
