"""Labels of clusters. Invariant: a label says what at least half of the members say, or "Mixed".

- A *root* is what the forms of a word have in common (`tokens.root_of`). Its *coverage* is the share of a cluster's
  members that contain it in any form; a label's coverage is the share of members that contain all its roots.
- A *subject* is a run of roots that half of the members contain. Its words are spelled as in the texts, and verbs
  count: 89 dependency bumps are "Bump". A faint word (`fix`, `add`) is a subject only where it is far more common than
  elsewhere.
- Subjects are chosen as KeyBERT does (Grootendorst 2020): by coverage, by how much more the cluster says it than the
  window (class-based TF-IDF), by the closeness of its members to the cluster's centre; a second subject adds a root to
  the first, and both together still cover half. A filing prefix of the texts comes first, as they have it: "Deps:
  update actions".
- What less than half of the members say is an example and marked as one: "Bump, e.g. ruff, mypy". Examples follow a
  subject of one word, and one that several clusters of the window share.
- Without a subject a label is "Mixed: " and up to three words that together cover most of the members.
- The words that a label adds ("Mixed", "e.g.") are in the language of most of the members (`label_words`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from highwater.streams.feeds.label_words import (
    NUMBERED,
    is_mixed,
    mixed,
    with_examples,
    without_examples,
    words_of_mixed,
)
from highwater.streams.feeds.phrases import FAINT, BoolArray, FloatArray, IntArray
from highwater.streams.feeds.roots import COMMON_SHARE_MIN, FAINT_WEIGHT, PARTIAL_SHARE_MAX, Roots
from highwater.streams.feeds.sparse import sparse_rows
from highwater.streams.messages import catalogue

LABEL_CHARACTERS_MAX = 72
# The rule: what half of the members say.
COVERAGE_MIN = 0.5
# A faint word (`kind_of`) is a subject if this many say it, this many times as often as elsewhere, or if nearly all say
# only it. The same action may occur in several clusters of a window (bump, update).
FAINT_LIFT_MIN = 3.0
FAINT_SHARE_MIN = 0.6
ACTION_LIFT_MIN = 1.5
FAINT_COVERAGE_MIN = 0.9
# A run of w telling roots (a faint one counts half) scores w ** LENGTH_POWER times its coverage: a pair in 60 % beats a
# word in all.
LENGTH_POWER = 0.75
# A root that the cluster says eight times as often as the rest is maximally distinctive; one that is equally common is
# half.
LIFT_FULL = 8.0
SUBJECTS_MAX = 3
# With three telling roots a label says enough.
TELLING_ENOUGH = 3.0
EXAMPLES_MAX = 2
MIXED_MAX = 3
# A run that contains the best one replaces it if it has this share of its members ("release notes" for "release").
LONGER_SHARE_MIN = 0.6
# An example, and a word of a mixed label, is in this share of the members and in two, none of which contain the words
# before it.
EXAMPLE_SHARE_MIN = 0.08
MIXED_SHARE_MIN = 0.1
# Clusters with the same name have no choice.
NAMESAKE_SHARE_MIN = 0.03
# An example of one of several namesakes occurs in it this many times as often as in any other.
NAMESAKE_LIFT_MIN = 1.5
# A former label stays while its score is this share of the new one's.
FORMER_WORTH_MIN = 0.5
# For a joined cluster, this many terms of each, and of all together, may be examples.
JOINED_TERMS, JOINED_TERMS_MAX = 10, 60
# Closeness is counted in whole units, so that sums do not depend on the order of rows.
CLOSENESS_UNIT = 1_000
# This many occurrences of a phrase decide its spelling.
PLACES_SEEN_MAX = 100
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Members:
    """The `size` members of a cluster by their distinct texts: `numbers` int (t,), ascending.

    Parallel to them float64 (t,), integers: how many members have each (`copies`), and the sum of their cosines with
    the cluster's centre, in `CLOSENESS_UNIT`. `terms` are possible examples, best first. `former`: the previous label.
    """

    size: int
    numbers: IntArray
    copies: FloatArray
    closeness: FloatArray
    terms: Sequence[int] = ()
    former: str | None = None
    mixed_share: float = MIXED_SHARE_MIN


@dataclass(frozen=True, slots=True)
class Name:
    """A label in parts: `head` with its `roots`; `examples`; `is_kept`: it is the former one; the `language` of texts."""

    head: str
    roots: frozenset[int] = frozenset()
    examples: tuple[str, ...] = ()
    is_kept: bool = False
    language: str | None = None

    @property
    def subject(self) -> frozenset[int]:
        """Return the roots that half of the members contain; none if there is no subject."""
        return frozenset() if is_mixed(self.head) else self.roots

    @property
    def label(self) -> str:
        """Return the label as it is shown; "" if there is none."""
        return with_examples(self.head, ", ".join(self.examples), catalogue().messages(self.language))


def joined(parts: Sequence[Members], former: str | None) -> Members:
    """Return the members of several clusters together, whose best terms alternate."""
    numbers, place = np.unique(np.concatenate([part.numbers for part in parts]), return_inverse=True)
    copies: FloatArray = np.zeros(len(numbers))
    closeness: FloatArray = np.zeros(len(numbers))
    np.add.at(copies, place, np.concatenate([part.copies for part in parts]))
    np.add.at(closeness, place, np.concatenate([part.closeness for part in parts]))
    turns = zip_longest(*(part.terms[:JOINED_TERMS] for part in parts))
    terms = list(dict.fromkeys(term for turn in turns for term in turn if term is not None))
    size = sum(part.size for part in parts)
    return Members(size, numbers, copies, closeness, terms[:JOINED_TERMS_MAX], former, MIXED_SHARE_MIN / 2)


def name_clusters(roots: Roots, members: Sequence[Members]) -> list[Name]:
    """Return the name of each cluster, made distinct by examples where possible; two may still be equal. Pure.

    The name of a cluster whose texts contain no word has no head.
    """
    views = _views(roots, members)
    names = [view.name() for view in views]
    siblings: dict[frozenset[int], list[int]] = defaultdict(list)
    for place, name in enumerate(names):
        if name.roots and not is_mixed(name.head):
            siblings[name.roots].append(place)
    return [
        _with_examples(name, views, place, own)
        if place in (own := siblings.get(name.roots, [])) and len(own) > 1
        else name
        for place, name in enumerate(names)
    ]


def word_shares(roots: Roots, members: Sequence[Members]) -> tuple[FloatArray, FloatArray]:
    """Return the share of each cluster's members with each root, and its `distinctiveness`: (clusters, roots)."""
    views = _views(roots, members)
    shape = (len(views), len(roots.roots))
    shares = np.array([view.coverage for view in views], dtype=np.float64).reshape(shape)
    return shares, np.array([view.distinct for view in views], dtype=np.float64).reshape(shape)


def spelled(roots: Roots, members: Members, root: int) -> str:
    """Return a root as the members' texts spell it, or if it is mostly a part of a hyphenated word, that word:
    `pre-commit` for `pre`.
    """
    is_it = np.arange(len(roots.roots)) == root
    starts = np.array(roots.runs(members.numbers, is_it, is_it)[root,])
    parts = roots.reading.parts
    within = starts[parts.hyphen_before[starts] | parts.hyphen_after[starts]]
    if len(within) <= PARTIAL_SHARE_MAX * len(starts):
        return _written(roots, (root,), starts.tolist())
    return _commonest(map(roots.reading.whole, within[:: 1 + len(within) // PLACES_SEEN_MAX].tolist()))


def _views(roots: Roots, members: Sequence[Members]) -> list[_View]:
    said = _heard(roots, members, [one.copies for one in members])
    texts = _heard(roots, members, [np.ones(len(one.copies)) for one in members])
    return [
        _View(roots, copies, shares_elsewhere(roots, roots.holding - own, len(one.numbers)), one)
        for copies, own, one in zip(said, texts, members, strict=True)
    ]


def distinctiveness(shares: FloatArray, elsewhere: FloatArray) -> FloatArray:
    """Return how much more a cluster contains words than the rest of the window: 0.5 for equally often or less, to 1."""
    found: FloatArray = 0.5 + 0.5 * np.clip(np.log(np.maximum(shares / elsewhere, 1.0)) / np.log(LIFT_FULL), 0.0, 1.0)
    return found


def shares_elsewhere(roots: Roots, holding: FloatArray, own: int) -> FloatArray:
    """Return the share of the window's other texts with each root; half a text more, so that none is 0."""
    others = len(roots.reading.texts) - own
    # Without other texts everything is the cluster's own.
    return (holding + 0.5) / (others + 1.0) if others else np.full(len(holding), 1.0 / LIFT_FULL)


def _heard(roots: Roots, members: Sequence[Members], counts: Sequence[FloatArray]) -> FloatArray:
    """Sum `counts` over the texts with each root: float64 (clusters, roots)."""
    bounds = np.cumsum([0, *(len(one.numbers) for one in members)])
    numbers = np.concatenate([np.zeros(0, dtype=np.int64), *(one.numbers for one in members)])
    own = sparse_rows((np.concatenate([np.zeros(0), *counts]), numbers, bounds), (len(members), roots.says.shape[0]))
    heard: FloatArray = (own @ roots.says).toarray()
    return heard


def _with_examples(name: Name, views: Sequence[_View], place: int, siblings: Sequence[int]) -> Name:
    """Return the name with examples that this one of several namesakes says more often than the others."""
    if name.is_kept and name.examples:
        return name
    others = [views[other] for other in siblings if other != place]
    return replace(name, examples=views[place].examples(name.roots, others) or name.examples)


@dataclass(frozen=True, slots=True)
class _Subject:
    """A run of roots, the parts at which it begins, and the texts of the cluster that contain it."""

    run: tuple[int, ...]
    starts: Sequence[int]
    holders: IntArray
    copies: float
    score: float


class _View:
    """A cluster as its texts show it. Arrays are parallel to its distinct texts."""

    def __init__(self, roots: Roots, copies: FloatArray, elsewhere: FloatArray, members: Members) -> None:
        """`copies`: members with each root. `elsewhere`: the share of the window's other texts with it. Both (roots,)."""
        self._roots, self._members = roots, members
        self._numbers, self._copies, self._close = members.numbers, members.copies, members.closeness
        self.coverage: FloatArray = np.round(copies / max(1, members.size), _DIGITS)
        self._lift = self.coverage / elsewhere
        # What other texts have as often cannot be a subject.
        self._can_be_subject = ~roots.is_common | (elsewhere < COMMON_SHARE_MIN)
        self.distinct = distinctiveness(self.coverage, elsewhere)
        self._worth = roots.weights * self.distinct
        self._language = roots.reading.language(members.numbers, members.copies)

    def name(self) -> Name:
        """Return the former label while it is about as accurate as the best, else the best."""
        best = self._best()
        former = self._former()
        if former is None or not best.head:
            return best
        if is_mixed(former.head) != is_mixed(best.head):
            return best
        worth, new = self._worth_of(former.roots), self._worth_of(best.roots)
        return former if worth >= FORMER_WORTH_MIN * new > 0 else best

    def examples(self, said: frozenset[int], others: Sequence[_View] = ()) -> tuple[str, ...]:
        """Return up to `EXAMPLES_MAX` terms besides the roots `said`, each more frequent here than in any of `others`."""
        least = max((NAMESAKE_SHARE_MIN if others else EXAMPLE_SHARE_MIN) * self._members.size, 2)
        return tuple(self._diverse(said, least, EXAMPLES_MAX, others))

    def _best(self) -> Name:
        subjects = self._chosen()
        if subjects:
            said = frozenset(root for one in subjects for root in one.run)
            head = capitalised(cut(self._head(subjects)))
            examples = self.examples(said) if self._telling(tuple(said)) <= 1 else ()
            return Name(head, said, examples, language=self._language)
        if not (self.coverage > 0).any() or not len(self._numbers):
            return Name("")
        words = self._diverse(frozenset(), max(2, self._members.mixed_share * self._members.size), MIXED_MAX)
        roots = frozenset(root for root in self._roots.numbers_of(" ".join(words)) if root is not None)
        head = mixed(", ".join(words), catalogue().messages(self._language))
        return Name(cut(head) if words else head, roots, language=self._language)

    def _chosen(self) -> list[_Subject]:
        """Return the subjects, best first: each new one adds roots, and all of them together cover half."""
        kinds = self._roots.kinds
        is_common = self.coverage >= COVERAGE_MIN
        can_begin = is_common & self._can_be_subject
        lift_min = np.where(self._roots.is_action, ACTION_LIFT_MIN, FAINT_LIFT_MIN)
        share_min = np.where(self._roots.is_action, COVERAGE_MIN, FAINT_SHARE_MIN)
        is_faint = (kinds == FAINT) & (self._lift >= lift_min) & (self.coverage >= share_min)
        is_edge = can_begin & ((kinds > FAINT) | is_faint)
        if not is_edge.any():
            is_edge = can_begin & (kinds == FAINT) & (self.coverage >= FAINT_COVERAGE_MIN)
        if not is_edge.any():
            return []
        runs = self._subjects(is_common, is_edge)
        chosen: list[_Subject] = []
        held = np.ones(len(self._numbers), dtype=bool)
        for one in runs:
            said = frozenset(root for other in chosen for root in other.run)
            if len(chosen) == SUBJECTS_MAX or self._telling(tuple(said)) >= TELLING_ENOUGH:
                break
            if not said.isdisjoint(one.run):
                continue
            longer = [
                other
                for other in runs
                if len(other.run) > len(one.run)
                and _holds(other.run, one.run)
                and other.copies >= LONGER_SHARE_MIN * one.copies
                and said.isdisjoint(other.run)
            ]
            for best in [*longer[:1], one]:
                both = np.zeros(len(held), dtype=bool)
                both[best.holders] = True
                both &= held
                if self._copies[both].sum() >= COVERAGE_MIN * self._members.size:
                    chosen.append(best)
                    held = both
                    break
        return chosen

    def _subjects(self, is_common: BoolArray, is_edge: BoolArray) -> list[_Subject]:
        """Return the runs of roots that half of the members contain, best first."""
        found = self._roots.runs(self._numbers, is_common, is_edge)
        parts = self._roots.reading.parts
        text_of = parts.text
        order = np.argsort(self._numbers)
        runs = []
        for run, starts in found.items():
            begins = np.asarray(starts)
            is_cut = parts.hyphen_before[begins] | parts.hyphen_after[begins + len(run) - 1]
            if 2 * is_cut.sum() > len(is_cut):
                continue
            holders = order[np.searchsorted(self._numbers, text_of[starts], sorter=order)]
            copies = float(self._copies[holders].sum())
            if copies >= COVERAGE_MIN * self._members.size:
                runs.append(_Subject(run, starts, holders, copies, self._score(run, holders)))
        return sorted(runs, key=lambda one: (-one.score, one.run))

    def _score(self, run: tuple[int, ...], holders: IntArray) -> float:
        share = self._copies[holders].sum() / self._members.size
        worth = self._worth[list(run)]
        telling = self._telling(run)
        distinct = worth.sum() / max(telling, FAINT_WEIGHT)
        close = self._close[holders].sum() / max(1.0, self._copies[holders].sum()) / CLOSENESS_UNIT
        return round(float(share * telling**LENGTH_POWER * distinct * (0.5 + 0.5 * max(0.0, close))), _DIGITS)

    def _telling(self, run: Sequence[int]) -> float:
        kinds = self._roots.kinds[list(run)]
        return float((kinds > FAINT).sum() + FAINT_WEIGHT * (kinds == FAINT).sum())

    def _head(self, subjects: Sequence[_Subject]) -> str:
        """Return the subjects in words: filing prefixes first, with a colon."""
        filed: list[str] = []
        said: list[str] = []
        for one in sorted(subjects, key=lambda one: (self._offset(one), one.run)):
            is_filing = self._roots.reading.is_filing[one.starts]
            (filed if 2 * is_filing.sum() > len(is_filing) else said).append(_written(self._roots, one.run, one.starts))
        told = ", ".join([*said[:1], *map(plain_word, said[1:])])
        if not filed:
            return told
        return f"{', '.join(filed)}: {plain_word(told)}" if told else ", ".join(filed)

    def _offset(self, subject: _Subject) -> float:
        """Return the average place of a subject in its texts."""
        starts = np.asarray(subject.starts)
        return float(np.mean(starts - self._roots.bounds[self._roots.reading.parts.text[starts]]))

    def _diverse(self, said: frozenset[int], least: float, limit: int, others: Sequence[_View] = ()) -> list[str]:
        """Return terms that cover the most members without an earlier term, each at least `least` of them."""
        reading, terms = self._roots.reading, list(self._members.terms)
        if not terms or not len(self._numbers):
            return []
        roots = [self._roots.numbers_of_stems(reading.stems_of(term)) for term in terms]
        held = reading.held(self._numbers, terms) > 0
        left = [i for i in range(len(terms)) if all(self._is_more(roots[i], other) for other in others)]
        worth = [self._distinct(roots[i]) for i in range(len(terms))]
        chosen: list[int] = []
        free = np.ones(len(self._numbers), dtype=bool)
        taken = said
        while left and len(chosen) < limit:
            left = [i for i in left if not self._is_said(roots[i], taken) and self._telling(tuple(roots[i])) >= 1]
            gains = {i: float(self._copies[free & held[:, i]].sum()) for i in left}
            gains = {i: gain for i, gain in gains.items() if gain >= least}
            if not gains:
                break
            best = max(gains, key=lambda i: (round(gains[i] * worth[i], _DIGITS), -i))
            # FastAPI for fast, bulk insert for insert.
            longer = [i for i in gains if roots[best] < roots[i] and gains[i] >= LONGER_SHARE_MIN * gains[best]]
            best = max(longer, key=lambda i: (gains[i], -i)) if longer else best
            chosen.append(best)
            free &= ~held[:, best]
            taken |= roots[best]
        return [reading.shown(terms[i]) for i in chosen]

    def _is_said(self, roots: frozenset[int], said: frozenset[int]) -> bool:
        """Return whether a root, or another form of it (connect, connector), was said."""
        names = self._roots.roots
        return any(root in said or any(_is_form(names[root], names[other]) for other in said) for root in roots)

    def _distinct(self, roots: frozenset[int]) -> float:
        own = [self._worth[root] for root in roots]
        return float(np.mean(own)) * len(own) ** 0.5 if own else 0.0

    def _is_more(self, roots: frozenset[int], other: _View) -> bool:
        own = min((self.coverage[root] for root in roots), default=0.0)
        its = min((other.coverage[root] for root in roots), default=0.0)
        return bool(own >= NAMESAKE_LIFT_MIN * its)

    def _former(self) -> Name | None:
        """Return the former label if it still satisfies the rule."""
        if not self._members.former:
            return None
        plain = NUMBERED.sub("", self._members.former)
        number = self._members.former[len(plain) :]
        head, examples = without_examples(plain)
        words = words_of_mixed(head)
        if words is not None:
            head = mixed(words, catalogue().messages(self._language))
        roots = self._roots.numbers_of(head if words is None else words)
        beside = self._roots.numbers_of(examples)
        if not roots or None in roots or None in beside:
            return None
        said = [root for root in roots if root is not None]
        if words is not None:
            is_true = min(self.coverage[said]) >= self._members.mixed_share / 2
        else:
            holds = (self._roots.says[self._numbers][:, said].toarray() > 0).all(axis=1)
            is_true = self._copies[holds].sum() >= COVERAGE_MIN * self._members.size
        told = [root for root in beside if root is not None]
        if not is_true or any(self.coverage[told] < EXAMPLE_SHARE_MIN / 2):
            return None
        shown = tuple(one for one in examples.split(", ") if one)
        return Name(head if shown else f"{head}{number}", frozenset(said), shown, is_kept=True, language=self._language)

    def _worth_of(self, roots: frozenset[int]) -> float:
        return round(float(sum(self._worth[root] * self.coverage[root] for root in sorted(roots))), _DIGITS)


def _written(roots: Roots, run: tuple[int, ...], starts: Sequence[int]) -> str:
    """Return the most common spelling in the texts of a run that begins at these parts; an abbreviation in capitals."""
    reading = roots.reading
    places = starts[:: 1 + len(starts) // PLACES_SEEN_MAX]
    written = _commonest(reading.written(at, at + len(run) - 1) for at in places)
    return (len(run) == 1 and reading.capitals(starts[0])) or written


def _commonest(written: Iterable[str]) -> str:
    """Return the most common spelling, of equally common ones the first alphabetically."""
    forms = Counter(written)
    spellings: Counter[str] = Counter()
    for form, times in forms.items():
        spellings[form.lower()] += times
    return min(forms, key=lambda form: (-spellings[form.lower()], form.lower(), -forms[form], form))


def _holds(run: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return any(run[first : first + len(part)] == part for first in range(len(run) - len(part) + 1))


def _is_form(root: str, other: str) -> bool:
    shorter, longer = sorted((root, other), key=len)
    return len(shorter) > 3 and longer.startswith(shorter) and len(longer) - len(shorter) <= 3


def plain_word(written: str) -> str:
    """Return a phrase that does not begin a label: without a capital that only marks a beginning."""
    first, space, rest = written.partition(" ")
    return f"{first.lower() if first[1:] == first[1:].lower() else first}{space}{rest}"


def cut(label: str) -> str:
    """Return a label of at most `LABEL_CHARACTERS_MAX` characters, cut at a word if possible."""
    if len(label) <= LABEL_CHARACTERS_MAX:
        return label
    return (label[: LABEL_CHARACTERS_MAX + 1].rsplit(" ", 1)[0])[:LABEL_CHARACTERS_MAX].rstrip(" ,:")


def capitalised(label: str) -> str:
    """Return a label with an initial capital, unless its first word is an identifier."""
    first = label.partition(" ")[0].rstrip(",:")
    return label[:1].upper() + label[1:] if first.isalpha() and first.islower() else label
