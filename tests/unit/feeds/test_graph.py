"""The graph of ties: locally scaled, averaged over, joined by modularity."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from highwater.streams.feeds.graph import _scales, averaged, joined, leanings, ties
from highwater.streams.feeds.neighbours import NOBODY, Distinct, find_neighbours
from tests.unit.feeds import sample


def graph_of(vectors):
    """Distinct vectors and their graph."""
    distinct = Distinct.of(vectors)
    return distinct, ties(find_neighbours(distinct))


def modularity(labels, weights):
    """Newman's, by its definition, over the groups."""
    total = weights.sum()
    degrees = weights.sum(axis=1) / total
    groups = [labels == group for group in set(labels[labels >= 0].tolist())]
    return sum(weights[np.ix_(own, own)].sum() / total - degrees[own].sum() ** 2 for own in groups)


def test_ties_are_symmetric_and_the_nearest_is_certain():
    """Weights lie in 0..1, are the same both ways, and each point's nearest weighs 1."""
    distinct = Distinct.of(sample.vectors()[:800])
    found = find_neighbours(distinct)
    graph = ties(found).toarray()
    np.testing.assert_array_equal(graph, graph.T)
    assert graph.max() <= 1
    assert graph.min() >= 0
    nearest = graph[np.arange(len(distinct)), found.others[:, 0]]
    np.testing.assert_allclose(nearest, 1, rtol=1e-6)


def test_a_points_ties_add_up_to_the_log_of_their_number():
    """For any distances, one direction's weights of 15 neighbours sum to log2(15), of 3 to log2(3)."""
    beyond = np.sort(np.random.default_rng(2).uniform(0, 1, (50, 15)), axis=1)
    beyond[:, 0] = 0
    for count in (15, 3):
        is_tie = np.broadcast_to(np.arange(15) < count, beyond.shape)
        weights = np.where(is_tie, np.exp(-beyond / _scales(beyond, is_tie)[:, None]), 0)
        np.testing.assert_allclose(weights.sum(axis=1), np.log2(count), rtol=1e-6)


def test_a_point_without_neighbours_has_no_ties_and_stays_where_it_is():
    """A vector at right angles to all others is tied to none and is not moved."""
    vectors = np.zeros((6, 4), dtype=np.float32)
    vectors[:5, :3] = np.random.default_rng(0).uniform(0.1, 1, (5, 3))
    vectors[5, 3] = 1
    distinct, graph = graph_of(vectors)
    alone = int(distinct.node_of_row[5])
    assert graph[[alone]].sum() == 0
    np.testing.assert_allclose(averaged(distinct.rounded, graph)[alone], vectors[5])


def test_averaging_draws_a_topic_together():
    """Two noisy bundles: within a bundle distances shrink to less than half, between them they do not."""
    source = np.random.default_rng(3)
    centres = np.repeat(np.eye(60, dtype=np.float32)[:2], 40, axis=0)
    vectors = (centres + source.normal(scale=0.15, size=(80, 60))).astype(np.float32)
    distinct, graph = graph_of(vectors)
    before = distinct.rounded / np.linalg.norm(distinct.rounded, axis=1, keepdims=True)
    after = averaged(distinct.rounded, graph)
    bundle = np.array([np.flatnonzero(distinct.node_of_row == i)[0] // 40 for i in range(len(distinct))])

    def spread(rows):
        gaps = np.linalg.norm(rows[:, None] - rows[None], axis=2)
        same = bundle[:, None] == bundle[None]
        return gaps[same].mean(), gaps[~same].mean()

    assert spread(after)[0] < spread(before)[0] / 2
    assert spread(after)[1] > spread(before)[1] * 0.9


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 40), groups=st.integers(1, 14))
def test_joining_raises_modularity_until_no_pair_does(seed, n, groups):
    """The result's modularity is at least as high, groups are only united, and no further union would raise it."""
    source = np.random.default_rng(seed)
    weights = source.uniform(size=(n, n)) * (source.uniform(size=(n, n)) < 0.15)
    weights = np.triu(weights, 1) + np.triu(weights, 1).T
    labels = np.unique(source.integers(-1, groups, n), return_inverse=True)[1] - 1
    if weights.sum() == 0:
        return
    found = joined(labels, csr_array(weights))
    assert modularity(found, weights) >= modularity(labels, weights) - 1e-12
    assert ((found < 0) == (labels < 0)).all()
    for group in range(int(labels.max()) + 1):
        assert len(set(found[labels == group].tolist())) == 1
    present = sorted(set(found[found >= 0].tolist()))
    assert present == list(range(len(present)))
    for a in present:
        for b in present[:a]:
            united = np.where(found == a, b, found)
            assert modularity(united, weights) <= modularity(found, weights) + 1e-9


def test_leanings_are_the_shares_of_ties():
    """Half of a point's ties to group 0, a quarter to group 1: it leans to 0 with 0.5. A point without ties leans nowhere."""
    weights = np.zeros((5, 5))
    for other, weight in ((1, 2.0), (2, 1.0), (3, 1.0)):
        weights[0, other] = weights[other, 0] = weight
    nearest, shares = leanings(np.array([-1, 0, 1, -1, -1]), csr_array(weights))
    assert (nearest[0], shares[0]) == (0, 0.5)
    assert (nearest[4], shares[4]) == (NOBODY, 0.0)
    assert nearest[3] == NOBODY


@pytest.mark.parametrize("n", [0, 1, 3])
def test_without_groups_nothing_leans_and_nothing_joins(n):
    """Without groups there are no leanings, and the labels are returned unchanged."""
    labels = np.full(n, NOBODY, dtype=np.intp)
    graph = csr_array((n, n), dtype=np.float32)
    assert (leanings(labels, graph)[0] == NOBODY).all()
    np.testing.assert_array_equal(joined(labels, graph), labels)
