"""Whether two clusters of a window have the same subject, so that one continues the other (`evolution`).

Invariant: a subject follows from the texts of a cluster's members that are in the window, and from no stored label: a
reader may have changed that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from highwater.streams.feeds.naming import Members, name_clusters
from highwater.streams.feeds.phrases import FAINT
from highwater.streams.feeds.roots import Roots


class Subjects:
    """The subjects of clusters, each found when it is first needed."""

    def __init__(self, roots: Roots, texts: Sequence[str | None], insight_ids: Sequence[str]) -> None:
        """`texts` and `insight_ids` of the window, of which `roots` are."""
        number_of = roots.reading.number_of
        self._roots = roots
        self._number_of = {one: number_of[text] for one, text in zip(insight_ids, texts, strict=True) if text}
        self._known: dict[tuple[str, ...], frozenset[int]] = {}

    def are_alike(self, before: Sequence[str], now: Sequence[str]) -> bool:
        """Return whether the telling words of one cluster's subject are all in the other's; without any, both are equal.

        A cluster without a subject is like no other.
        """
        subjects = [self._of(tuple(members)) for members in (before, now)]
        telling = [frozenset(root for root in one if self._roots.kinds[root] > FAINT) for one in subjects]
        if not any(telling):
            return bool(subjects[0]) and subjects[0] == subjects[1]
        return all(telling) and (telling[0] <= telling[1] or telling[1] <= telling[0])

    def _of(self, members: tuple[str, ...]) -> frozenset[int]:
        known = self._known.get(members)
        if known is None:
            numbers = [self._number_of[one] for one in members if one in self._number_of]
            held, copies = np.unique(np.array(numbers, dtype=np.int64), return_counts=True)
            own = Members(len(numbers), held, copies.astype(np.float64), np.zeros(len(held)))
            known = self._known[members] = name_clusters(self._roots, [own])[0].subject
        return known
