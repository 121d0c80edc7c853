"""What a window's texts contain, by roots: the common part of a word's forms (`tokens.root_of`).

Invariant: that of `phrases`: it depends on the set of texts alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from highwater.streams.feeds.phrases import (
    FAINT,
    FOREIGN,
    STOP,
    BoolArray,
    FloatArray,
    IntArray,
    Reading,
    distinct,
    kind_of,
)
from highwater.streams.feeds.sparse import sparse_rows
from highwater.streams.feeds.tokens import ACTION_WORDS, root_of, spelled_words_of, stem_of

# The maximum number of parts of a phrase ("auto fixes from pre-commit.com hooks" has seven).
PHRASE_PARTS_MAX = 7
# A word that is a part of others in most of its occurrences (the pre of pre-commit) says little alone.
PARTIAL_SHARE_MAX = 0.5
# A word that this share of a window's texts contains does not distinguish its clusters ("Python" in an index of Python
# packages, 29 %; "library", 16 %). In a smaller window a word of a sixth is a topic.
COMMON_SHARE_MIN, COMMON_TEXTS_MIN = 0.15, 500
# A faint word counts half.
FAINT_WEIGHT = 0.5


class Roots:
    """What texts contain, by roots.

    `kinds` int8 (roots,): `STOP`, `FAINT` or telling, with `weights` of 0, `FAINT_WEIGHT` or 1; `is_action` bool
    (roots,): a faint one that is an action; `is_common` bool (roots,): a faint one that is everywhere in the window;
    `is_partial` bool (roots,): mostly a part of a longer word. `says` csr (texts, roots): 1 where a text contains a root;
    `holding` float64 (roots,): how many texts do.
    """

    def __init__(self, reading: Reading) -> None:
        """Count what was read."""
        self.reading = reading
        parts = reading.parts
        of_stem = [root_of(stem) for stem in parts.stems]
        self.roots = sorted(set(of_stem))
        self._number = {root: number for number, root in enumerate(self.roots)}
        root_of_stem = np.array([self._number[root] for root in of_stem], dtype=np.int64)
        self.kinds = np.full(len(self.roots), 9, dtype=np.int8)
        np.minimum.at(self.kinds, root_of_stem, np.array([_kind(stem) for stem in parts.stems], dtype=np.int8))
        self.is_action: BoolArray = np.array([root in _ACTIONS for root in self.roots], dtype=bool)
        self.of_part: IntArray = root_of_stem[parts.stem]
        times = np.bincount(self.of_part, minlength=len(self.roots))
        within = np.bincount(self.of_part, parts.word_size > 1, minlength=len(self.roots))
        self.is_partial: BoolArray = within > PARTIAL_SHARE_MAX * times
        said = np.flatnonzero(np.array([root != "" for root in self.roots])[self.of_part])
        places = distinct(parts.text[said] * len(self.roots) + self.of_part[said])
        text, root = np.divmod(places, max(1, len(self.roots)))
        bounds = np.searchsorted(text, np.arange(len(reading.texts) + 1))
        shape = (len(reading.texts), len(self.roots))
        self.says = sparse_rows((np.ones(len(places)), root, bounds), shape=shape)
        self.holding: FloatArray = np.asarray(self.says.sum(axis=0), dtype=np.float64)
        texts = len(reading.texts)
        is_everywhere = (self.holding >= COMMON_SHARE_MIN * texts) & (texts >= COMMON_TEXTS_MIN)
        self.is_common: BoolArray = is_everywhere & (self.kinds > FAINT)
        self.kinds[self.is_common] = FAINT
        self.weights: FloatArray = np.where(self.kinds > FAINT, 1.0, np.where(self.kinds == FAINT, FAINT_WEIGHT, 0.0))
        self.bounds: IntArray = np.searchsorted(parts.text, np.arange(len(reading.texts) + 1))

    def numbers_of(self, written: str) -> list[int | None]:
        """Return the roots of a label's words except function words, None for one that no text contains."""
        words = [written[first:last].lower() for first, last in spelled_words_of(written)]
        told = [(word, stem) for word in words if _kind(stem := stem_of(word)) != STOP]
        found = [(word, self._number.get(root_of(stem))) for word, stem in told]
        return [number for word, number in found if number is not None or root_of(FOREIGN + word) not in self._number]

    def numbers_of_stems(self, stems: Sequence[str]) -> frozenset[int]:
        """The roots of stems that were read."""
        return frozenset(self._number[root_of(stem)] for stem in stems)

    def runs(self, numbers: IntArray, is_common: BoolArray, is_edge: BoolArray) -> dict[tuple[int, ...], list[int]]:
        """Return the roots of stems that were read."""
        lengths = self.bounds[numbers + 1] - self.bounds[numbers]
        starts = np.repeat(self.bounds[numbers] - (np.cumsum(lengths) - lengths), lengths)
        parts = starts + np.arange(int(lengths.sum()))
        parts = parts[is_common[self.of_part[parts]]]
        if not len(parts):
            return {}
        text = self.reading.parts.text[parts]
        cuts = np.flatnonzero((np.diff(parts) != 1) | (np.diff(text) != 0)) + 1
        found: dict[tuple[int, ...], list[int]] = defaultdict(list)
        seen: set[tuple[int, tuple[int, ...]]] = set()
        roots, edges = self.of_part[parts].tolist(), is_edge[self.of_part[parts]].tolist()
        ats, texts = parts.tolist(), text.tolist()
        for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(parts)], strict=True):
            for first in range(begin, end):
                if not edges[first]:
                    continue
                for last in range(first, min(end, first + PHRASE_PARTS_MAX)):
                    run = tuple(roots[first : last + 1])
                    if roots[last] in run[:-1]:
                        break
                    if edges[last] and (texts[first], run) not in seen:
                        seen.add((texts[first], run))
                        found[run].append(ats[first])
        return found


_ACTIONS = frozenset(map(root_of, ACTION_WORDS))


def _kind(stem: str) -> int:
    """Return where runs of common roots begin in texts: up to `PHRASE_PARTS_MAX` different ones, edges at both ends,
    once per text.
    """
    if len(stem) == 1:
        return STOP if stem.isascii() else FAINT
    return kind_of(stem)
