"""Describes a cluster for a reader: its keywords, its label, and the insight that represents it.

Invariant: the same clusters have the same descriptions for any order of their insights, every cluster has a label
and a keyword for any texts, and both consist of words of the texts.

Keywords are weighed by class-based TF-IDF (Grootendorst 2022) with shares of texts as frequencies, so that a window
that moves on by a week changes them little, and chosen by maximal marginal relevance (Carbonell and Goldstein 1998).
`naming` chooses labels; the label of the last version stays while it is about as accurate as the best.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from highwater.streams.feeds.former import former_labels
from highwater.streams.feeds.label_words import is_mixed
from highwater.streams.feeds.naming import CLOSENESS_UNIT, Members, capitalised, cut, name_clusters
from highwater.streams.feeds.phrases import FloatArray, IntArray, Reading, unfiled
from highwater.streams.feeds.roots import Roots
from highwater.streams.feeds.theme_names import Described, name_themes
from highwater.streams.feeds.tokens import TEXT_CHARACTERS_MAX, root_of
from highwater.streams.messages import catalogue

# What a reader takes in at a glance; measures of coherence use ten.
KEYWORDS_MAX = 6
# Terms of each cluster that are compared with each other: no list of ten needs more.
CANDIDATES_MAX = 40
# A keyword is in two texts and in 4 % of them; a term in only one text belongs to that text.
TEXTS_MIN = 2
TERM_SHARE_MIN = 0.04
# Below a tenth of the best score a term is chance.
SCORE_SHARE_MIN = 0.1
# Exponents of the factors of a score, measured on real windows: a full IDF prefers what two texts share to the
# cluster's subject, and without the peak factor one word is a keyword of ten clusters.
IDF_POWER = 0.7
PEAK_POWER = 0.7
# Relevance against redundancy (MMR), and the bonus for co-occurrence with earlier keywords.
RELEVANCE = 0.9
TOGETHER_BONUS = 0.5
# A keyword shares a text with this share of those before it: the list is one topic, not a word of each corner.
TOGETHER_MIN = 0.7
# A word that occurs within a longer term in half of its texts is covered by it ("consumer group").
LONGER_SHARE_MIN = 0.5
# Memberships become integers of this unit, so that sums do not depend on the order of rows.
MEMBERSHIP_UNIT = 1_000
# Scores are compared to nine digits, for the same reason.
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """One cluster as a reader gets it.

    `insight_ids` are in the order of the input; `keywords` best first; `theme` is the name of the group of similar
    clusters.
    """

    label: str
    keywords: tuple[str, ...]
    insight_ids: tuple[str, ...]
    representative_id: str
    size: int
    theme: str = ""


def describe_clusters(
    labels: NDArray[np.intp],
    probabilities: NDArray[np.float64],
    vectors: NDArray[np.float32],
    texts: Sequence[str | None],
    insight_ids: Sequence[str],
    *,
    keywords_max: int = KEYWORDS_MAX,
    former: Mapping[str, Collection[str]] | None = None,
    former_themes: Mapping[str, Collection[str]] | None = None,
    roots: Roots | None = None,
) -> list[ClusterDescription]:
    """Describe every cluster, the largest first, then by representative id.

    `labels` int (n,) with -1 for noise, `probabilities` float64 (n,) in 0..1, `vectors` float32 (n, d), `texts` and
    `insight_ids` of length n. `keywords_max`: maximum keywords of each. `former`: labels of the last version, each with
    the ids of its insights, `former_themes` those of its themes. `roots`: of the texts, if they were read before.
    Without a readable word the keyword is the beginning of the representative's text, or its id. Two clusters never
    share a label. Source: R0.36; Grootendorst 2022.

    Raises:
        ValueError: the lengths differ.
    """
    if not len(labels) == len(probabilities) == len(vectors) == len(texts) == len(insight_ids):
        raise ValueError("labels, probabilities, vectors, texts and insight_ids differ in length")
    strengths = np.nan_to_num(np.asarray(probabilities, dtype=np.float64), nan=1.0)
    members = [np.flatnonzero(labels == cluster) for cluster in range(int(labels.max(initial=-1)) + 1)]
    members = [rows for rows in members if len(rows)]
    owned = [tuple(insight_ids[row] for row in rows.tolist()) for rows in members]
    called = former_labels(owned, insight_ids, former or {})
    roots = roots or Roots(Reading(texts))
    reading = roots.reading
    centres = [_Centre.of(rows, strengths, vectors, insight_ids) for rows in members]
    tallies = _tallied(reading, members, strengths, texts, centres)
    topics = _topics(reading, tallies)
    told = [
        Members(len(rows), tally.numbers, tally.copies, tally.closeness, topic.terms.tolist(), before)
        for rows, tally, topic, before in zip(members, tallies, topics, called, strict=True)
    ]
    names = name_clusters(roots, told)
    described = []
    for rows, own, ids, centre, name in zip(members, topics, owned, centres, names, strict=True):
        representative = centre.representative
        fallback = _plain(texts[representative]) or catalogue().messages(name.language).gettext(
            "Insight {id}", id=insight_ids[representative]
        )
        keywords = tuple(dict.fromkeys(map(reading.shown, own.keywords(keywords_max))))
        described.append(
            ClusterDescription(
                label=name.label or capitalised(fallback),
                keywords=keywords or (fallback.lower(),),
                insight_ids=ids,
                representative_id=insight_ids[representative],
                size=len(rows),
            )
        )
    themes = name_themes(
        [
            Described(
                one.label,
                own,
                frozenset() if is_mixed(name.head) else name.roots,
                centre.point,
                one.insight_ids,
                one.representative_id,
            )
            for one, own, name, centre in zip(described, told, names, centres, strict=True)
        ],
        roots,
        insight_ids,
        former_themes or {},
    )
    described = [replace(one, theme=theme) for one, theme in zip(described, themes, strict=True)]
    described.sort(key=lambda one: (-one.size, one.representative_id))
    return _told_apart(described)


@dataclass(frozen=True, slots=True)
class _Topic:
    """The term statistics of one cluster.

    `terms` int (t,), best first, with `scores` (t,). `together` (t, t): in how many of its texts two terms occur; the
    diagonal counts one.
    """

    reading: Reading
    terms: IntArray
    scores: FloatArray
    together: FloatArray

    def keywords(self, limit: int) -> list[int]:
        """Return up to `limit` terms that belong together and do not repeat each other, best first."""
        return self._chosen(limit)

    def _chosen(self, limit: int) -> list[int]:
        stems = [frozenset(map(root_of, self.reading.stems_of(term))) for term in self.terms.tolist()]
        left = [i for i in range(len(stems)) if self.scores[i] >= SCORE_SHARE_MIN * self.scores[0]]
        meets = self.together > 0
        alone = self.together.diagonal()
        alike = self.together / (alone[:, None] + alone[None, :] - self.together)
        chosen: list[int] = []
        while left and len(chosen) < limit:
            links, nearest = np.ones(len(stems)), np.zeros(len(stems))
            if chosen:
                links, nearest = meets[chosen].mean(axis=0), alike[chosen].max(axis=0)
            gains = self.scores / self.scores[0]
            gains = np.round(RELEVANCE * gains - (1 - RELEVANCE) * nearest + TOGETHER_BONUS * links, _DIGITS)
            left = [i for i in left if links[i] >= TOGETHER_MIN]
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


@dataclass(frozen=True, slots=True)
class _Tally:
    """The distinct texts of a cluster by number, ascending: int (t,).

    Parallel to them float64 (t,), all integers: how many members have each (`copies`), how close these are to the
    centre (`closeness`), and their weight (`weights`): mean membership by the root of its copies, from 1. So a hundred
    copies count ten times, and one more or fewer changes little.
    """

    numbers: IntArray
    copies: FloatArray
    closeness: FloatArray
    weights: FloatArray


def _tallied(
    reading: Reading,
    members: Sequence[NDArray[np.intp]],
    strengths: FloatArray,
    texts: Sequence[str | None],
    centres: Sequence[_Centre],
) -> list[_Tally]:
    number_of_row = np.array([reading.number_of[text] if text else -1 for text in texts], dtype=np.int64)
    units = np.round(MEMBERSHIP_UNIT * strengths)
    tallies = []
    for rows, centre in zip(members, centres, strict=True):
        number = number_of_row[rows]
        is_said = number >= 0
        numbers, place = np.unique(number[is_said], return_inverse=True)
        copies = np.bincount(place, minlength=len(numbers)).astype(np.float64)
        strength = np.bincount(place, units[rows][is_said], minlength=len(numbers))
        closeness: FloatArray = np.zeros(len(numbers))
        np.add.at(closeness, place, centre.closeness[is_said])
        weights = np.maximum(1.0, np.round(strength / np.sqrt(copies)))
        tallies.append(_Tally(numbers, copies, closeness, weights))
    return tallies


def _topics(reading: Reading, tallies: Sequence[_Tally]) -> list[_Topic]:
    """Return the best terms of each cluster by share * ln(1 + 1 / share in the window) * nearness to its peak in any cluster."""
    bounds = np.cumsum([0, *(len(own.numbers) for own in tallies)])
    numbers = np.concatenate([np.zeros(0, dtype=np.int64), *(own.numbers for own in tallies)])
    units = np.concatenate([np.zeros(0), *(own.weights for own in tallies)])
    shape = (len(tallies), len(reading.texts))
    heard = csr_array((units, numbers, bounds), shape=shape) @ reading.holds
    texts_with = csr_array((np.ones(len(units)), numbers, bounds), shape=shape) @ reading.holds
    heard.sort_indices()
    texts_with.sort_indices()
    totals = np.array([max(1.0, own.weights.sum()) for own in tallies])
    shares = heard.data / np.repeat(totals, np.diff(heard.indptr))
    peaks = np.zeros(heard.shape[1])
    np.maximum.at(peaks, heard.indices, np.where(texts_with.data >= TEXTS_MIN, shares, 0.0))
    everywhere = np.maximum(1.0, reading.holds.sum(axis=0))
    idf = np.log1p(len(reading.texts) / everywhere) ** IDF_POWER
    peak = np.minimum(1.0, shares / np.maximum(peaks, np.finfo(float).tiny)[heard.indices]) ** PEAK_POWER
    scores = np.round(shares * idf[heard.indices] * peak, _DIGITS)
    topics = []
    for cluster, own in enumerate(tallies):
        part = slice(heard.indptr[cluster], heard.indptr[cluster + 1])
        topics.append(_topic(reading, own.numbers, heard.indices[part], scores[part], texts_with.data[part]))
    return topics


def _topic(reading: Reading, numbers: IntArray, term: IntArray, score: FloatArray, texts_with: FloatArray) -> _Topic:
    shared = texts_with >= min(TEXTS_MIN, len(numbers))
    telling = reading.is_telling[term]
    # The strictest choice that leaves something.
    choices = (telling & shared & (texts_with >= TERM_SHARE_MIN * len(numbers)), telling & shared, telling, shared)
    kept = next((choice for choice in choices if choice.any()), np.ones(len(term), dtype=bool))
    best = np.flatnonzero(kept)
    best = best[np.lexsort((term[best], -score[best]))[:CANDIDATES_MAX]]
    held = reading.held(numbers, term[best])
    return _Topic(reading, term[best], score[best], held.T @ held)


def _is_repeated(stems: frozenset[str], words_said: frozenset[str]) -> bool:
    """Return whether a term repeats a stem, or all of it in one word (`GitHub` after `github`)."""
    return any(_is_form(stem, other) for stem in (*stems, "".join(sorted(stems))) for other in words_said)


def _is_form(word: str, other: str) -> bool:
    """Return whether two words are forms of one: `update`, `updates`, `updated`."""
    shorter, longer = sorted((word, other), key=len)
    return word == other or (len(shorter) > 3 and longer.startswith(shorter[:-1]) and len(longer) - len(shorter) <= 3)


@dataclass(frozen=True, slots=True)
class _Centre:
    """The representative row of a cluster, its centre as a `point`, float64 (d,), and how close each of its rows is to
    that.

    `closeness` are cosines in `CLOSENESS_UNIT`, integers, float64 (rows,).
    """

    representative: int
    point: FloatArray
    closeness: FloatArray

    @classmethod
    def of(
        cls, rows: NDArray[np.intp], strengths: FloatArray, vectors: NDArray[np.float32], insight_ids: Sequence[str]
    ) -> _Centre:
        """Choose the row closest to the centroid, which weighs each row by its membership; ties by insight id."""
        # Summed in the order of the ids: floats added in another order give another sum.
        order = sorted(range(len(rows)), key=lambda place: insight_ids[int(rows[place])])
        own = vectors[rows[order]].astype(np.float64)
        weights = strengths[rows[order]] if strengths[rows[order]].sum() > 0 else np.ones(len(order))
        centroid = weights @ own / weights.sum()
        lengths = np.einsum("ij,ij->i", own, own)
        along = own @ centroid
        best = order[int(np.round(lengths - 2.0 * along, _DIGITS).argmin())]
        scale = np.sqrt(lengths) * math.sqrt(float(centroid @ centroid))
        cosines = np.divide(along, scale, out=np.zeros(len(order)), where=scale > 0)
        closeness = np.empty(len(order))
        closeness[order] = np.round(CLOSENESS_UNIT * cosines)
        return cls(int(rows[best]), centroid, closeness)


def _plain(text: str | None) -> str:
    """Return the beginning of a text on one line, without its filing prefix."""
    return cut(" ".join(unfiled((text or "")[:TEXT_CHARACTERS_MAX]).split()))


def _told_apart(described: list[ClusterDescription]) -> list[ClusterDescription]:
    """Return the descriptions with distinct labels: a later namesake adds its own keyword, else a number."""
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
