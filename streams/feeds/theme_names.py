"""Finds the themes of described clusters, and names them.

Invariant: a theme's name consists of words of its texts, no two themes share a name, and the order of clusters changes
nothing.

- Clusters whose subject is of one kind (`kinds`), or that share a word, are one theme. It is named by the rule for
  clusters if half of its members say a subject of that kind; else by the words of the kind, or the word, that most of
  its clusters contain.
- The others are joined by closeness: up to three list their subjects ("Search, auth"), and what is left over is one
  theme that says so. If that would have most members, each group lists the subjects of its largest clusters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from highwater.streams.feeds.former import former_labels
from highwater.streams.feeds.kinds import kind_shares, kinds_of
from highwater.streams.feeds.label_words import is_mixed, other, with_more, without_examples, without_more
from highwater.streams.feeds.naming import (
    LABEL_CHARACTERS_MAX,
    Members,
    Name,
    capitalised,
    joined,
    name_clusters,
    plain_word,
    spelled,
    word_shares,
)
from highwater.streams.feeds.phrases import FAINT, BoolArray, FloatArray
from highwater.streams.feeds.roots import Roots
from highwater.streams.feeds.themes import Theme, find_themes
from highwater.streams.messages import Messages, catalogue

# The share of a cluster's members with a word of a kind, and with one word, that makes it the cluster's theme.
KIND_SHARE_MIN = 0.5
WORD_SHARE_MIN = 0.35
# A cluster contains a word of its theme's name if this share of its members does.
SAID_SHARE_MIN = 0.25
# A cluster that no theme was made for joins the one whose kind or word this share of it contains, and this many times
# as distinctively as what is equally common everywhere.
NEAR_KIND_SHARE_MIN = 0.4
NEAR_WORD_SHARE_MIN = 0.2
NEAR_WORTH_MIN = 0.75
# What the members contain and the label does not say counts this much.
BESIDE_SUBJECT = 0.6
# Words of a kind, and subjects of clusters, that a name lists.
LISTED_MAX = 3
# Sums are compared to this many digits, so that their order does not matter.
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Described:
    """A cluster with its label, its members, the roots of its subject, its centre, and its representative's id."""

    label: str
    members: Members
    subject: frozenset[int]
    centre: FloatArray
    insight_ids: tuple[str, ...]
    representative_id: str


def name_themes(
    clusters: Sequence[Described], roots: Roots, insight_ids: Sequence[str], former: Mapping[str, Collection[str]]
) -> list[str]:
    """Return the name of each cluster's theme. Pure.

    `insight_ids`: all of the window; `former`: the names of the last version's themes with the ids of their insights.
    """
    view = _View.of(clusters, roots)
    themes = find_themes(
        view.values, view.near, [one.centre for one in clusters], [one.representative_id for one in clusters]
    )
    themes = _with_rest(clusters, themes)
    # The largest theme first, so that of two with the same name the smaller one gets the number.
    ordered = sorted(
        themes,
        key=lambda theme: (
            -sum(clusters[place].members.size for place in theme.places),
            min(clusters[place].representative_id for place in theme.places),
        ),
    )
    owned = [[insight_id for place in theme.places for insight_id in clusters[place].insight_ids] for theme in ordered]
    before = former_labels(owned, insight_ids, former)
    together = [
        joined([clusters[place].members for place in theme.places], None if was is None else without_more(was))
        for theme, was in zip(ordered, before, strict=True)
    ]
    names = [""] * len(clusters)
    taken: set[str] = set()
    for theme, members, name in zip(ordered, together, name_clusters(roots, together), strict=True):
        label = view.label(theme, members, name)
        label = next(one for one in _numbered(label) if one.lower() not in taken)
        taken.add(label.lower())
        for place in theme.places:
            names[place] = label
    return names


def _with_rest(clusters: Sequence[Described], themes: Sequence[Theme]) -> list[Theme]:
    """Return the themes with one theme of all clusters that are only close: of more than a name lists, or without a subject.

    A theme is a subject or a short list of them, unless most members are left over: one heading of nearly everything
    does not help to find a cluster.
    """
    named: list[Theme] = []
    rest: list[Theme] = []
    for theme in themes:
        own = [clusters[place] for place in theme.places]
        is_listed = len(own) <= LISTED_MAX and not any(is_mixed(one.label) for one in own)
        (named if theme.word is not None or is_listed else rest).append(theme)
    sizes = [sum(clusters[place].members.size for theme in part for place in theme.places) for part in (named, rest)]
    if not rest or sizes[1] > sizes[0]:
        return list(themes)
    return [*named, Theme(tuple(sorted(place for theme in rest for place in theme.places)), is_rest=True)]


@dataclass(frozen=True, slots=True)
class _View:
    """How well each kind, then each root, says what a cluster is about: `values`, and `near` for a cluster that no theme
    was made for, float64 (clusters, kinds + roots); 0: it does not. `shares` (clusters, roots) of members.
    """

    clusters: Sequence[Described]
    roots: Roots
    kinds: list[list[int]]
    shares: FloatArray
    values: FloatArray
    near: FloatArray

    @classmethod
    def of(cls, clusters: Sequence[Described], roots: Roots) -> _View:
        """Measure clusters."""
        members = [one.members for one in clusters]
        kinds = kinds_of(roots)
        shares, worth = word_shares(roots, members)
        # A faint word names no theme, and neither does one that is mostly a part of longer words.
        worth = np.where((roots.kinds > FAINT) & ~roots.is_partial, worth, 0.0)
        of_kind, worth_of_kind = kind_shares(roots, members, kinds)
        is_kind: BoolArray = np.array(
            [[not one.subject.isdisjoint(kind) for kind in kinds] for one in clusters], dtype=bool
        ).reshape(len(clusters), len(kinds))
        is_subject = np.zeros(shares.shape, dtype=bool)
        for place, one in enumerate(clusters):
            is_subject[place, sorted(one.subject)] = True
        both = np.hstack([of_kind * worth_of_kind, shares * worth])
        both *= np.where(np.hstack([is_kind, is_subject]), 1.0, BESIDE_SUBJECT)
        is_much = np.hstack([of_kind >= KIND_SHARE_MIN, shares >= WORD_SHARE_MIN])
        is_near = np.hstack([of_kind >= NEAR_KIND_SHARE_MIN, shares >= NEAR_WORD_SHARE_MIN])
        is_near &= np.hstack([worth_of_kind, worth]) >= NEAR_WORTH_MIN
        return cls(clusters, roots, kinds, shares, np.where(is_much, both, 0.0), np.where(is_near, both, 0.0))

    def label(self, theme: Theme, members: Members, name: Name) -> str:
        """Return the name of a theme; `name`: that of all its members together."""
        clusters = [self.clusters[place] for place in theme.places]
        if len(clusters) == 1:
            return clusters[0].label
        messages = catalogue().messages(self.roots.reading.language(members.numbers, members.copies))
        if theme.is_rest:
            return other(messages)
        is_common = bool(name.subject) and self._contains_most(theme.places, name.subject)
        if theme.word is None:
            return (is_common and name.label) or _subjects_of(clusters, messages) or name.label
        words = self.kinds[theme.word] if theme.word < len(self.kinds) else [theme.word - len(self.kinds)]
        if is_common and not name.subject.isdisjoint(words):
            return name.label
        said = [spelled(self.roots, members, word) for word in self._words_of(theme.places, words)]
        return ", ".join([*map(capitalised, said[:1]), *map(plain_word, said[1:])]) or _subjects_of(clusters, messages)

    def _contains_most(self, places: Sequence[int], words: Collection[int]) -> bool:
        """Return whether more than half of these clusters contain all of these words."""
        says = self.shares[np.ix_(list(places), sorted(words))] >= SAID_SHARE_MIN
        return bool(2 * says.all(axis=1).sum() > len(places))

    def _words_of(self, places: Sequence[int], words: Sequence[int]) -> list[int]:
        """Return the word of a kind that most clusters contain, or up to `LISTED_MAX` that together do, the
        most common first.
        """
        own = self.shares[np.ix_(list(places), list(words))]
        is_subject = np.array([[word in self.clusters[place].subject for word in words] for place in places])
        worth = np.where(own >= SAID_SHARE_MIN, own * np.where(is_subject, 1.0, BESIDE_SUBJECT), 0.0)
        chosen: list[int] = []
        free = np.ones(len(places), dtype=bool)
        while len(chosen) < LISTED_MAX and 2 * free.sum() >= len(places):
            gains = np.round(worth[free].sum(axis=0), _DIGITS)
            best = int(gains.argmax())
            if gains[best] <= 0:
                break
            chosen.append(best)
            free &= worth[:, best] <= 0
        sizes = np.array([self.clusters[place].members.size for place in places])
        told = np.round(sizes @ own, _DIGITS)
        return [words[place] for place in sorted(chosen, key=lambda place: (-told[place], place))]


def _subjects_of(clusters: Sequence[Described], messages: Messages) -> str:
    """Return the subjects of the largest clusters, and how many more there are; "" if no cluster has one."""
    listed = ""
    said = 0
    for one in sorted(clusters, key=lambda one: (-one.members.size, one.representative_id)):
        subject, _ = without_examples(one.label)
        longer = f"{listed}, {plain_word(subject)}" if listed else subject
        if is_mixed(subject) or subject.lower() in listed.lower() or len(longer) > LABEL_CHARACTERS_MAX:
            continue
        listed, said = longer, said + 1
        if said == LISTED_MAX:
            break
    more = len(clusters) - said
    return with_more(listed, more, messages) if listed and more else listed


def _numbered(label: str) -> Iterator[str]:
    yield label
    for number in count(2):
        yield f"{label} ({number})"
