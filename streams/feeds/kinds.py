"""Kinds of subjects: words that a reader puts together, as "docs" and "readme".

Invariant: a kind only joins clusters. A theme is named by words of its texts.

The lists are of software, which most feeds are about; texts on other matters contain few of these words, and their
clusters are joined by the words that they share.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from highwater.streams.feeds.naming import Members, distinctiveness, shares_elsewhere
from highwater.streams.feeds.phrases import FloatArray
from highwater.streams.feeds.roots import Roots
from highwater.streams.feeds.tokens import root_of, stem_of

KINDS = (
    "bump dependabot dependency lockfile pin renovate requirements upgrade",
    "benchmark ci coverage flaky hook junit lint mypy pipeline pytest ruff test",
    "comment docs docstring example guide javadoc readme spelling tutorial typo",
    "announcement changelog release tag version",
    "cleanup dead deprecated obsolete redundant refactor remove rename simplify unnecessary unused",
    "crash error exception failure fallback retry timeout warning",
    """access acl auth authorization certificate credential login oauth password permission role sasl secret security ssl
    tls token""",
    "button css dashboard dialog frontend icon layout modal page theme ui",
    "api asyncapi client endpoint http middleware openapi request response rest route url websocket",
    "avro column database field index json postgres protobuf query record schema serialization sql sqlite table",
    "broker consumer kafka message mqtt nats offset partition producer queue rabbit rebalance redis stream topic",
    "build chart container deploy docker dockerfile helm image kubernetes package plugin wheel",
    "log metrics monitoring telemetry trace",
    "argument config default flag option parameter setting",
    "async concurrency executor job lock multiprocessing scheduler task thread worker workflow",
)


def kinds_of(roots: Roots) -> list[list[int]]:
    """Return the roots of each kind that the window's texts contain, ascending."""
    number = {root: place for place, root in enumerate(roots.roots)}
    return [
        sorted({number[root] for word in words.split() if (root := root_of(stem_of(word))) in number})
        for words in KINDS
    ]


def kind_shares(
    roots: Roots, members: Sequence[Members], kinds: Sequence[Sequence[int]]
) -> tuple[FloatArray, FloatArray]:
    """Return the share of each cluster's members with any word of a kind, and its `distinctiveness`: (clusters, kinds)."""
    shares, worth = np.zeros((2, len(members), len(kinds)))
    for number, kind in enumerate(kinds):
        holds = (roots.says[:, list(kind)].sum(axis=1) > 0).astype(np.float64)
        total = holds.sum()
        for place, one in enumerate(members):
            own = holds[one.numbers]
            shares[place, number] = (own * one.copies).sum() / max(1, one.size)
            elsewhere = shares_elsewhere(roots, np.array([total - own.sum()]), len(one.numbers))
            worth[place, number] = distinctiveness(shares[place, number : number + 1], elsewhere)[0]
    return shares, worth
