"""Owns how a cluster is told to a reader: its keywords, a label, the insight that stands for it.

Its law: the same clusters read the same in whatever order their insights come, every cluster has a label and a keyword
whatever its texts hold, and both are made of what the texts themselves contain.

Keywords are weighed by class-based TF-IDF (Grootendorst 2022) with shares of texts as frequencies, so that a window that
moves on by a week changes them little, and chosen by maximal marginal relevance (Carbonell and Goldstein 1998). A label is
the phrase that speaks for the cluster, as its texts write it; where none does, its best terms. What a cluster was called in
the last version stays while it is about as true as the best label would be.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from highwater.streams.feeds.phrases import FloatArray, IntArray, Phrase, Reading, stems_in, unfiled
from highwater.streams.feeds.tokens import TEXT_CHARACTERS_MAX

# What a reader takes in at a glance; measures of coherence ask for ten.
KEYWORDS_MAX = 6
LABEL_CHARACTERS_MAX = 72
LABEL_TERMS_MAX = 3
# A phrase of w telling words in a share s of the texts scores s * w ** LENGTH_POWER: a pair in 60 % of the texts beats
# a word in all of them. Below SHARE_MIN of the texts it does not speak for the cluster, and with fewer telling words than
# two ("update dependency") it needs terms beside it.
LENGTH_POWER = 0.75
SHARE_MIN = 0.35
PHRASE_TELLING_MIN = 1.5
# Of each cluster this many terms are compared with each other: no list of ten gets past them.
CANDIDATES_MAX = 40
# A keyword stands in two texts and in 4 % of them; a term that is in one text only is that text's.
TEXTS_MIN = 2
TERM_SHARE_MIN = 0.04
# Below a tenth of the best score a term is chance.
SCORE_SHARE_MIN = 0.1
# Powers of the factors of a score, measured on real windows: a full IDF prefers what two texts share to what the cluster
# is about, and without the peak factor one word is a keyword of ten clusters.
IDF_POWER = 0.7
PEAK_POWER = 0.7
# Relevance against redundancy (MMR), and the bonus of standing in texts together with the keywords chosen before.
RELEVANCE = 0.9
TOGETHER_BONUS = 0.5
# A keyword shares a text with this share of those before it: the list is one topic, not a word from each corner.
TOGETHER_MIN = 0.7
# A word that stands in a longer term in half of its texts is said by it ("consumer group").
LONGER_SHARE_MIN = 0.5
# A third term stands in a label when it scores this share of the first: a weak one changes from week to week.
THIRD_SCORE_MIN = 0.5
# A former label stays while its words score this share of what the new one's do.
FORMER_SCORE_MIN = 0.5
# Memberships become whole numbers of this unit, so that sums do not depend on the order of rows.
MEMBERSHIP_UNIT = 1_000
# Scores are compared to nine digits, for the same reason.
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """One cluster as a reader gets it. `insight_ids` are in the order of the input; `keywords` best first."""

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
    *,
    keywords_max: int = KEYWORDS_MAX,
    former: Mapping[str, Collection[str]] | None = None,
) -> list[ClusterDescription]:
    """Describe every cluster, the largest first, then by representative id.

    `labels` int (n,) with -1 for noise, `probabilities` float64 (n,) in 0..1, `vectors` float32 (n, d), `texts` and
    `insight_ids` of length n. `keywords_max`: keywords of each, at most. `former`: labels of the last version, each with
    the ids of its insights. Without one readable word the keyword is the beginning of the representative's text, or its
    id. Two clusters never share a label. Source: R0.36; Grootendorst 2022.

    Raises:
        ValueError: the lengths differ.
    """
    if not len(labels) == len(probabilities) == len(vectors) == len(texts) == len(insight_ids):
        raise ValueError("labels, probabilities, vectors, texts and insight_ids differ in length")
    strengths = np.nan_to_num(np.asarray(probabilities, dtype=np.float64), nan=1.0)
    members = [np.flatnonzero(labels == cluster) for cluster in range(int(labels.max(initial=-1)) + 1)]
    members = [rows for rows in members if len(rows)]
    owned = [tuple(insight_ids[row] for row in rows.tolist()) for rows in members]
    called = _called(owned, insight_ids, former or {})
    reading = Reading(texts)
    weights = [_weights(rows, strengths, texts, reading) for rows in members]
    described = []
    for rows, own, ids, before in zip(members, _topics(reading, weights), owned, called, strict=True):
        representative = _representative(rows, strengths, vectors, insight_ids)
        fallback = _plain(texts[representative]) or f"Insight {insight_ids[representative]}"
        keywords = tuple(dict.fromkeys(map(reading.shown, own.keywords(keywords_max))))
        described.append(
            ClusterDescription(
                label=_label(own, before) or _capitalised(fallback),
                keywords=keywords or (fallback.lower(),),
                insight_ids=ids,
                representative_id=insight_ids[representative],
                size=len(rows),
            )
        )
    described.sort(key=lambda one: (-one.size, one.representative_id))
    return _told_apart(described)


@dataclass(frozen=True, slots=True)
class _Topic:
    """What can be said of one cluster.

    `weights`: of its texts, by number. `terms` int (t,), best first, with `scores` (t,). `together` (t, t): in how many of
    its texts two terms stand; the diagonal says it of one. `stem_scores`: of single stems.
    """

    reading: Reading
    weights: Mapping[int, int]
    terms: IntArray
    scores: FloatArray
    together: FloatArray
    stem_scores: Mapping[str, float]

    def keywords(self, limit: int) -> list[int]:
        """Up to `limit` terms that belong together and do not repeat each other, best first."""
        return self._chosen(limit, TOGETHER_MIN, frozenset())

    def best_terms(self, limit: int, said: frozenset[str]) -> list[int]:
        """Up to `limit` terms that do not repeat each other or stems `said` before, by score alone, which moves least."""
        chosen = self._chosen(limit, 0.0, said)
        score = dict(zip(self.terms.tolist(), self.scores.tolist(), strict=True))
        return [
            term for rank, term in enumerate(chosen) if rank < 2 or score[term] >= THIRD_SCORE_MIN * score[chosen[0]]
        ]

    def _chosen(self, limit: int, together_min: float, said: frozenset[str]) -> list[int]:
        stems = [frozenset(self.reading.stems_of(term)) for term in self.terms.tolist()]
        left = [i for i in range(len(stems)) if not _is_repeated(stems[i], said)]
        left = [i for i in left if self.scores[i] >= SCORE_SHARE_MIN * self.scores[left[0]]]
        meets = self.together > 0
        alone = self.together.diagonal()
        alike = self.together / (alone[:, None] + alone[None, :] - self.together)
        chosen: list[int] = []
        while left and len(chosen) < limit:
            links, nearest = np.ones(len(stems)), np.zeros(len(stems))
            if chosen:
                links, nearest = meets[chosen].mean(axis=0), alike[chosen].max(axis=0)
            gains = self.scores / self.scores[0]
            if together_min:
                gains = RELEVANCE * gains - (1 - RELEVANCE) * nearest + TOGETHER_BONUS * links
            gains = np.round(gains, _DIGITS)
            left = [i for i in left if links[i] >= together_min]
            if not left:
                break
            best = max(left, key=lambda i: (gains[i], -i))
            longer = [
                i for i in left if stems[best] < stems[i] and self.together[best, i] >= LONGER_SHARE_MIN * alone[best]
            ]
            best = max(longer, key=lambda i: (self.together[best, i], len(stems[i]), -i)) if longer else best
            chosen.append(best)
            left = [i for i in left if not _is_repeated(stems[i], stems[best])]
        return [int(self.terms[i]) for i in chosen]

    def truth(self, label: str) -> float:
        """The mean score of a label's stems; 0 when it has none or one of them is nothing that the cluster says."""
        scores = [self.stem_scores.get(stem, 0.0) for stem in stems_in(label)]
        return math.fsum(scores) / len(scores) if all(scores) and scores else 0.0


def _weights(
    rows: NDArray[np.intp], strengths: FloatArray, texts: Sequence[str | None], reading: Reading
) -> dict[int, int]:
    """What each distinct text of a cluster counts: mean membership by the root of its copies, in whole units, from 1.

    So a hundred copies count ten times, and one that comes or goes moves little.
    """
    copies: Counter[int] = Counter()
    strength: Counter[int] = Counter()
    for row in rows.tolist():
        text = texts[row]
        if text:
            number = reading.number_of[text]
            copies[number] += 1
            strength[number] += round(MEMBERSHIP_UNIT * float(strengths[row]))
    return {number: max(1, round(strength[number] / math.sqrt(copies[number]))) for number in sorted(copies)}


def _topics(reading: Reading, weights: Sequence[Mapping[int, int]]) -> list[_Topic]:
    """The best terms of each cluster by share * ln(1 + 1 / share in the window) * nearness to its peak in any cluster."""
    bounds = np.cumsum([0, *map(len, weights)])
    numbers = np.array([number for own in weights for number in own], dtype=np.int64)
    units = np.array([unit for own in weights for unit in own.values()], dtype=np.float64)
    shape = (len(weights), len(reading.texts))
    heard = csr_array((units, numbers, bounds), shape=shape) @ reading.holds
    texts_with = csr_array((np.ones(len(units)), numbers, bounds), shape=shape) @ reading.holds
    heard.sort_indices()
    texts_with.sort_indices()
    totals = np.array([max(1, sum(own.values())) for own in weights], dtype=np.float64)
    shares = heard.data / np.repeat(totals, np.diff(heard.indptr))
    peaks = np.zeros(heard.shape[1])
    np.maximum.at(peaks, heard.indices, np.where(texts_with.data >= TEXTS_MIN, shares, 0.0))
    everywhere = np.maximum(1.0, reading.holds.sum(axis=0))
    idf = np.log1p(len(reading.texts) / everywhere) ** IDF_POWER
    peak = np.minimum(1.0, shares / np.maximum(peaks, np.finfo(float).tiny)[heard.indices]) ** PEAK_POWER
    scores = np.round(shares * idf[heard.indices] * peak, _DIGITS)
    topics = []
    for cluster, own in enumerate(weights):
        part = slice(heard.indptr[cluster], heard.indptr[cluster + 1])
        topics.append(_topic(reading, own, heard.indices[part], scores[part], texts_with.data[part]))
    return topics


def _topic(
    reading: Reading, weights: Mapping[int, int], term: IntArray, score: FloatArray, texts_with: FloatArray
) -> _Topic:
    shared = texts_with >= min(TEXTS_MIN, len(weights))
    telling = reading.is_telling[term]
    # The strictest choice that leaves something.
    choices = (telling & shared & (texts_with >= TERM_SHARE_MIN * len(weights)), telling & shared, telling, shared)
    kept = next((choice for choice in choices if choice.any()), np.ones(len(term), dtype=bool))
    best = np.flatnonzero(kept)
    best = best[np.lexsort((term[best], -score[best]))[:CANDIDATES_MAX]]
    held = reading.holds[np.fromiter(weights, np.int64, len(weights))][:, term[best]]
    single = reading.is_single[term]
    stem_scores = {
        reading.stems_of(one)[0]: value
        for one, value in zip(term[single].tolist(), score[single].tolist(), strict=True)
    }
    return _Topic(reading, weights, term[best], score[best], (held.T @ held).toarray(), stem_scores)


def _label(topic: _Topic, before: str | None) -> str:
    """The label that a cluster had `before` while it is still true, else its phrase, else its best terms."""
    label = _phrase_label(topic) or _terms_label(topic)
    if before and label and topic.truth(before) >= FORMER_SCORE_MIN * topic.truth(label) > 0:
        return before
    return label


def _phrase_label(topic: _Topic) -> str:
    ranks = {stem: rank for rank, term in enumerate(topic.terms.tolist()) for stem in topic.reading.stems_of(term)}

    def score(phrase: Phrase) -> float:
        rank = min(
            (ranks.get(stem, CANDIDATES_MAX) for stems in phrase.words for stem in stems), default=CANDIDATES_MAX
        )
        return round(phrase.share * float(phrase.telling**LENGTH_POWER) * (1.0 - 0.5 * rank / CANDIDATES_MAX), _DIGITS)

    phrases = [
        phrase
        for phrase in topic.reading.phrases(topic.weights, SHARE_MIN)
        if phrase.telling >= PHRASE_TELLING_MIN and len(phrase.written) <= LABEL_CHARACTERS_MAX
    ]
    if not phrases:
        return ""
    best = min(phrases, key=lambda phrase: (-score(phrase), phrase.words))
    label = _capitalised(best.written)
    if best.telling >= PHRASE_TELLING_MIN + 0.5:
        return label
    more = topic.best_terms(2, frozenset(stem for stems in best.words for stem in stems))
    return _cut(f"{label}: {', '.join(map(topic.reading.shown, more))}") if more else label


def _terms_label(topic: _Topic) -> str:
    """The best terms; "" for a single word, which says little: the representative's text says more."""
    shown = list(map(topic.reading.shown, topic.best_terms(LABEL_TERMS_MAX, frozenset())))
    return _cut(_capitalised(", ".join(shown))) if len(shown) > 1 or any(" " in term for term in shown) else ""


def _called(
    owned: Sequence[Sequence[str]], insight_ids: Sequence[str], former: Mapping[str, Collection[str]]
) -> list[str | None]:
    """The former label of each cluster: of the one that most of it was in, and most of whose remaining insights it has."""
    here = frozenset(insight_ids)
    label_of = {insight_id: label for label, ids in former.items() for insight_id in ids if insight_id in here}
    remaining = Counter(label_of.values())
    called: list[str | None] = []
    for ids in owned:
        shared = Counter(label_of[insight_id] for insight_id in ids if insight_id in label_of)
        label, times = max(shared.items(), key=lambda item: (item[1], item[0]), default=(None, 0))
        is_same = label is not None and 2 * times > max(remaining[label], sum(shared.values()))
        called.append(label if is_same else None)
    return called


def _is_repeated(stems: frozenset[str], said: frozenset[str]) -> bool:
    """Whether a term says a stem again, or all of it in one word (`GitHub` after `github`)."""
    return any(_is_form(stem, other) for stem in (*stems, "".join(sorted(stems))) for other in said)


def _is_form(word: str, other: str) -> bool:
    """Whether two words are forms of one: `update`, `updates`, `updated`."""
    shorter, longer = sorted((word, other), key=len)
    return word == other or (len(shorter) > 3 and longer.startswith(shorter[:-1]) and len(longer) - len(shorter) <= 3)


def _representative(
    rows: NDArray[np.intp], strengths: FloatArray, vectors: NDArray[np.float32], insight_ids: Sequence[str]
) -> int:
    """The row closest to the centroid, which counts each row by its membership; ties by insight id."""
    # Summed in the order of the ids: floats added in another order are other floats.
    ordered = sorted(rows.tolist(), key=lambda row: insight_ids[row])
    own = vectors[ordered].astype(np.float64)
    weights = strengths[ordered] if strengths[ordered].sum() > 0 else np.ones(len(ordered))
    centroid = weights @ own / weights.sum()
    distances = np.einsum("ij,ij->i", own, own) - 2.0 * (own @ centroid)
    return int(ordered[int(np.round(distances, _DIGITS).argmin())])


def _plain(text: str | None) -> str:
    """The beginning of a text on one line, without how it is filed."""
    return _cut(" ".join(unfiled((text or "")[:TEXT_CHARACTERS_MAX]).split()))


def _cut(label: str) -> str:
    """A label of at most `LABEL_CHARACTERS_MAX` characters, cut at a word where there is one."""
    if len(label) <= LABEL_CHARACTERS_MAX:
        return label
    return (label[: LABEL_CHARACTERS_MAX + 1].rsplit(" ", 1)[0])[:LABEL_CHARACTERS_MAX].rstrip(" ,:")


def _capitalised(label: str) -> str:
    """A label with a capital at its beginning, unless its first word is an identifier."""
    first = label.partition(" ")[0].rstrip(",")
    return label[:1].upper() + label[1:] if first.isalpha() and first.islower() else label


def _told_apart(described: list[ClusterDescription]) -> list[ClusterDescription]:
    """The same descriptions with distinct labels: a later namesake adds its own keyword, else a number."""
    seen: dict[str, frozenset[str]] = {}
    result = []
    for one in described:
        label, taken = one.label, seen.get(one.label.lower())
        if taken is not None:
            own = [word for word in one.keywords if word not in taken and word.lower() not in label.lower()]
            candidates = chain(own, map(str, count(2)))
            label = next(told for mark in candidates if (told := f"{one.label} ({mark})").lower() not in seen)
        seen[label.lower()] = frozenset(one.keywords)
        result.append(replace(one, label=label))
    return result
