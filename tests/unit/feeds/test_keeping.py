"""Clusters of the last version are kept while they hold together nearly as well as what was found in their place."""

from __future__ import annotations

import numpy as np
import pytest

from highwater.streams.feeds.clustering import NOISE, Clustering, cluster_embeddings
from highwater.streams.feeds.keeping import Grouping, former_rows, keep_former
from highwater.streams.feeds.recluster import recluster
from highwater.streams.feeds.versions import LastVersion, NewVersion, Window
from tests.unit.feeds import sample

# Three topics of twenty directions each.
TOPIC = np.repeat([0, 1, 2], 20)
EVERY = range(3)


@pytest.fixture(scope="module")
def found() -> Clustering:
    """The ties of the three topics."""
    vectors = np.eye(3, 16)[TOPIC] + np.random.default_rng(2).normal(0, 0.1, (60, 16))
    return cluster_embeddings(vectors.astype(np.float32))


def groups(labels: np.ndarray) -> set[frozenset[int]]:
    """The members of each cluster, by row."""
    return {frozenset(np.flatnonzero(labels == number).tolist()) for number in set(labels.tolist()) - {NOISE}}


def keep(found: Clustering, labels: np.ndarray, former: np.ndarray, before: object = EVERY) -> set[frozenset[int]]:
    """The clusters after keeping former ones; all have a subject but those that are not in `before`."""
    return groups(keep_former(found, Grouping(labels, range(9)), Grouping(former, before), 4))


def test_a_former_cluster_keeps_its_members_and_takes_what_was_found_with_it(found: Clustering):
    """A member that is noise now has its ties there and stays; an insight that is new joins with the others."""
    now, former = TOPIC.copy(), TOPIC.copy()
    now[3] = NOISE
    former[[5, 45]] = NOISE
    assert keep(found, now, former) == groups(TOPIC)


def test_a_piece_of_a_former_cluster_stays_in_it(found: Clustering):
    """Found apart, six of twenty have most of their ties to the others: the cluster holds together better than the two."""
    now = TOPIC.copy()
    now[:6] = 3
    assert keep(found, now, TOPIC) == groups(TOPIC)


def test_two_topics_that_were_one_part(found: Clustering):
    """Their modularity apart is far above that of both together, so the former cluster gives way."""
    former = np.where(TOPIC == 1, 0, TOPIC)
    assert keep(found, TOPIC, former) == groups(TOPIC)


def test_a_cluster_without_a_subject_gives_way_to_those_that_have_one(found: Clustering):
    """The same piece is a cluster of its own if the former one had no subject."""
    now = TOPIC.copy()
    now[:6] = 3
    assert keep(found, now, TOPIC, before=(1, 2)) == groups(now)


def test_what_no_former_cluster_had_is_as_it_was_found(found: Clustering):
    """A topic that is new stays a cluster, and the former ones come first."""
    former = np.where(TOPIC == 2, 0, NOISE)
    labels = keep_former(found, Grouping(TOPIC, EVERY), Grouping(former, EVERY), 4)
    assert groups(labels) == groups(TOPIC)
    assert set(labels[TOPIC == 2].tolist()) == {0}


def test_rows_are_matched_by_their_insights():
    """A row of no former cluster has none."""
    assert former_rows([("b", "x"), ("a",)], ("a", "b", "c")).tolist() == [1, 0, NOISE]


def version_of(rows: np.ndarray, number: int, before: NewVersion | None = None) -> NewVersion:
    """The version of some rows of the sample."""
    texts, ids = sample.texts(), [one["insight_id"] for one in sample.insights()]
    last = None if before is None else LastVersion(before.clusters, before.outside, before.neighbours)
    chosen = rows.tolist()
    return recluster(
        Window(number, sample.vectors()[rows], tuple(texts[i] for i in chosen), tuple(ids[i] for i in chosen), last)
    )


def test_with_one_in_twenty_new_most_insights_stay_under_their_id():
    """At least 85 % of them; found from nothing 75 %."""
    order = np.random.default_rng(1).permutation(len(sample.texts()))
    first = version_of(np.sort(order[: round(0.95 * len(order))]), 1)
    second = version_of(np.sort(order), 2, first)
    were, are = (
        {insight_id: one.cluster_id for one in made.clusters for insight_id in one.insight_ids}
        for made in (first, second)
    )
    assert np.mean([are.get(insight_id) == cluster_id for insight_id, cluster_id in were.items()]) > 0.85
