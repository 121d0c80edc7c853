"""The map of a window: near points near, clusters apart, and the next version where the last one was."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.manifold import trustworthiness

from highwater.streams.feeds.layout import DISC_SHARE, Layout, Previous, lay_out
from tests.unit.feeds import sample

NEIGHBOURS = 15


def graph_of(vectors):
    """The nearest rows and their cosine, nearest first, itself excluded."""
    near = np.clip(np.einsum("ij,kj->ik", vectors, vectors), 0, 1)
    np.fill_diagonal(near, -1)
    order = np.argsort(-near, axis=1, kind="stable")[:, : min(NEIGHBOURS, max(0, len(vectors) - 1))]
    return order, np.take_along_axis(near, order, axis=1).astype(np.float32)


@cache
def real():
    """The sample's distinct vectors in the order of time, and one of 20 topics for three quarters of them."""
    _, first = np.unique(sample.vectors(), axis=0, return_index=True)
    rows = np.sort(first)
    vectors = sample.vectors()[rows]
    reduced = PCA(20, random_state=0).fit_transform(vectors)
    topics = KMeans(20, n_init=1, random_state=0).fit(reduced)
    far = topics.transform(reduced).min(axis=1)
    labels = np.where(far > np.quantile(far, 0.75), -1, topics.labels_)
    return [sample.insights()[row]["insight_id"] for row in rows], vectors, labels


def window(first, last):
    """The input of `lay_out` for the points first..last, and their vectors."""
    ids, vectors, labels = real()
    present = np.unique(labels[first:last])
    present = present[present >= 0]
    compact = np.full(21, -1)
    compact[present] = np.arange(len(present))
    args = (ids[first:last], compact[labels[first:last]], [f"topic-{one}" for one in present])
    return (*args, *graph_of(vectors[first:last])), vectors[first:last]


def previous_of(layout: Layout, args, next_args) -> Previous:
    """The input of the next version from this one."""
    place = dict(zip(args[0], layout.positions, strict=True))
    positions = np.array([place.get(one, (math.nan, math.nan)) for one in next_args[0]]).reshape(-1, 2)
    return Previous(positions, {one: (x, y) for one, (x, y) in zip(args[2], layout.clusters.tolist(), strict=True)})


def separation(layout: Layout) -> float:
    """The least distance of two discs' centres as a share of their radii; 1 where they touch."""
    apart = np.linalg.norm(layout.clusters[:, None] - layout.clusters, axis=2) / (layout.radii[:, None] + layout.radii)
    return float(apart[~np.eye(len(apart), dtype=bool)].min(initial=math.inf))


def members_outside(layout: Layout, labels) -> float:
    """How far the farthest member is outside its disc."""
    rows = np.flatnonzero(labels >= 0)
    distance = np.linalg.norm(layout.positions[rows] - layout.clusters[labels[rows]], axis=1)
    return float((distance - layout.radii[labels[rows]]).max(initial=0))


@st.composite
def windows(draw):
    """Up to 60 points on a sphere, up to 8 clusters, some of the edges missing."""
    u = draw(st.integers(0, 60))
    shake = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    vectors = shake.normal(size=(u, 8)).astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    neighbours, similarities = graph_of(vectors)
    neighbours = np.where(shake.random(neighbours.shape) < draw(st.sampled_from([0, 0.3, 1])), -1, neighbours)
    _, labels = np.unique(shake.integers(-1, draw(st.integers(0, 8)), size=u), return_inverse=True)
    labels = labels - draw(st.sampled_from([0, 1]))
    clusters = [f"c{one}" for one in range(int(labels.max(initial=-1)) + 1)]
    return [f"p{one}" for one in range(u)], labels, clusters, neighbours, similarities


@settings(max_examples=40, deadline=None)
@given(windows(), st.data())
def test_laws_of_any_map(args, data):
    """Every place is finite and in the unit circle, discs do not overlap, members are in theirs, and that holds for
    the next version too, for any new part; without new insights nothing moves by more than a rounding error.
    """
    u, c = len(args[0]), len(args[2])
    first = lay_out(*args)
    new = np.array(data.draw(st.lists(st.booleans(), min_size=u, max_size=u)), dtype=bool)
    kept = data.draw(st.integers(0, c))
    told = previous_of(first, args, args)
    told.positions[new] = math.nan
    second = lay_out(*args, Previous(told.positions, {one: told.clusters[one] for one in args[2][:kept]}))
    for layout in (first, second):
        assert layout.positions.shape == (u, 2)
        assert layout.clusters.shape == (c, 2)
        assert np.linalg.norm(layout.positions, axis=1).max(initial=0) <= 1.001
        assert (np.linalg.norm(layout.clusters, axis=1) + layout.radii).max(initial=0) <= 1.001
        assert separation(layout) > 0.98
        assert members_outside(layout, args[1]) < 5e-4
        assert np.square(layout.radii).sum() <= DISC_SHARE + 1e-9
        again = lay_out(*args, previous_of(layout, args, args))
        np.testing.assert_allclose(again.positions, layout.positions, atol=5e-4)
        np.testing.assert_allclose(again.clusters, layout.clusters, atol=5e-4)


@settings(max_examples=20, deadline=None)
@given(windows(), st.randoms(use_true_random=False))
def test_permuting_rows_and_labels_permutes_the_map(args, shuffler):
    """The same window in another order of rows and clusters gets the same bytes in that order."""
    ids, labels, clusters, neighbours, similarities = args
    rows, names = list(range(len(ids))), list(range(len(clusters)))
    shuffler.shuffle(rows)
    shuffler.shuffle(names)
    row_of = np.append(np.argsort(rows), -1).astype(int)
    name_of = np.append(np.argsort(names), -1).astype(int)
    moved = lay_out(
        [ids[row] for row in rows],
        name_of[labels[rows]],
        [clusters[name] for name in names],
        row_of[neighbours[rows]],
        similarities[rows],
    )
    straight = lay_out(*args)
    np.testing.assert_array_equal(moved.positions, straight.positions[rows])
    np.testing.assert_array_equal(moved.clusters, straight.clusters[names])
    np.testing.assert_array_equal(moved.radii, straight.radii[names])


def test_real_text_is_nearer_to_its_neighbours_than_by_principal_components():
    """On the sample's subjects trustworthiness is a tenth above PCA's at least: 0.6 against 0.8."""
    args, vectors = window(0, len(real()[0]))
    layout = lay_out(*args)
    found = trustworthiness(vectors, layout.positions, n_neighbors=10, metric="cosine")
    plain = trustworthiness(vectors, PCA(2, random_state=0).fit_transform(vectors), n_neighbors=10, metric="cosine")
    assert found > plain + 0.1
    assert separation(layout) > 1.05


def test_the_next_version_leaves_things_where_they_were():
    """When a tenth of a real window is new and a tenth is removed, half of the rest moves under 1 % of the map's
    diameter and all but a twentieth under 5 %, and the map is nearly as accurate as a newly drawn one.
    """
    args, _ = window(0, 1500)
    next_args, vectors = window(150, 1650)
    told = previous_of(lay_out(*args), args, next_args)
    after = lay_out(*next_args, told)
    moved = np.linalg.norm(after.positions - told.positions, axis=1)
    moved = moved[np.isfinite(moved)] / np.ptp(after.positions, axis=0).max()
    assert len(moved) == 1350
    assert np.median(moved) < 0.01
    assert np.quantile(moved, 0.95) < 0.05
    anew = lay_out(*next_args)
    true_after, true_anew = (
        trustworthiness(vectors, layout.positions, n_neighbors=10, metric="cosine") for layout in (after, anew)
    )
    assert true_after > true_anew - 0.03


def test_a_new_point_lands_where_its_neighbours_are():
    """Every second point of a map is removed and added again: half of them, and half of those in no cluster, come to
    lie within 0.1 of their former place; no other point of a cluster moves farther than the limit.
    """
    args, _ = window(0, 1000)
    first = lay_out(*args)
    told = previous_of(first, args, args)
    told.positions[::2] = math.nan
    second = lay_out(*args, told)
    moved = np.linalg.norm(second.positions - first.positions, axis=1)
    is_new, is_noise = np.arange(1000) % 2 == 0, args[1] < 0
    assert np.median(moved[is_new]) < 0.1
    assert np.median(moved[is_new & is_noise]) < 0.1
    assert moved[~is_new & ~is_noise].max() < 0.0805


def test_permuting_a_real_window_changes_no_byte():
    """1,000 real points in reverse get the same bytes, reversed."""
    ids, labels, clusters, neighbours, similarities = window(0, 1000)[0]
    straight = lay_out(ids, labels, clusters, neighbours, similarities)
    moved = lay_out(ids[::-1], labels[::-1], clusters, 999 - neighbours[::-1], similarities[::-1])
    np.testing.assert_array_equal(moved.positions, straight.positions[::-1])


def test_related_clusters_are_nearer_than_others():
    """Among all pairs of topics, the tenth that share most edges is nearer on the map than the mean pair."""
    args, _ = window(0, len(real()[0]))
    labels, neighbours = args[1], args[3]
    layout = lay_out(*args)
    c = len(args[2])
    shared = np.zeros((c, c))
    source, target = np.repeat(labels, neighbours.shape[1]), labels[neighbours.ravel()]
    both = (source >= 0) & (target >= 0)
    np.add.at(shared, (source[both], target[both]), 1)
    sizes = np.bincount(labels[labels >= 0])
    related = ((shared + shared.T) / np.sqrt(sizes[:, None] * sizes))[np.triu_indices(c, 1)]
    apart = np.linalg.norm(layout.clusters[:, None] - layout.clusters, axis=2)[np.triu_indices(c, 1)]
    assert apart[related >= np.quantile(related, 0.9)].mean() < 0.8 * apart.mean()


def test_a_new_cluster_takes_free_room():
    """A cluster that appears among others moves none of them where there is room."""
    args, _ = window(0, 1500)
    first = lay_out(*args)
    told = previous_of(first, args, args)
    told.positions[args[1] == 3] = math.nan
    second = lay_out(
        *args, Previous(told.positions, {one: at for one, at in told.clusters.items() if one != args[2][3]})
    )
    others = np.arange(len(args[2])) != 3
    np.testing.assert_allclose(second.clusters[others], first.clusters[others], atol=1e-3)
    assert separation(second) > 0.98


@pytest.mark.parametrize("is_clustered", [True, False])
@pytest.mark.parametrize("is_linked", [True, False])
def test_ten_thousand_points_in_one_cluster_or_in_none(is_clustered, is_linked):
    """One cluster of everything, and no cluster at all, with and without any neighbour, give a map of distinct places."""
    u = 10_000
    near = (np.arange(u)[:, None] + [1, u - 1]) % u if is_linked else np.full((u, 2), -1)
    labels = np.full(u, 0 if is_clustered else -1)
    clusters = ["all"] if is_clustered else []
    layout = lay_out([str(one) for one in range(u)], labels, clusters, near, np.full((u, 2), 0.5, dtype=np.float32))
    assert np.isfinite(layout.positions).all()
    assert len(np.unique(layout.positions, axis=0)) > 0.9 * u
    assert members_outside(layout, labels) < 5e-4


def test_new_points_that_resemble_nothing_come_to_the_edge_and_stay_on_the_map():
    """Beside a cluster that touches the edge, 100 new points without neighbours find places of their own there."""
    u = 200
    told = np.full((u, 2), math.nan)
    told[:100] = 0.5, 0
    labels = np.where(np.arange(u) < 100, 0, -1)
    nothing = np.full((u, 1), -1), np.zeros((u, 1), dtype=np.float32)
    layout = lay_out([str(one) for one in range(u)], labels, ["c"], *nothing, Previous(told, {"c": (0.9, 0.0)}))
    distance = np.linalg.norm(layout.positions[100:], axis=1)
    assert distance.min() > 0.5
    assert distance.max() < 1.0002
    assert len(np.unique(layout.positions[100:], axis=0)) == 100


def test_clusters_told_on_one_place_part():
    """Two clusters whose previous positions are the same are pushed apart."""
    args, _ = window(0, 300)
    at = dict.fromkeys(args[2], (0.1, 0.1))
    layout = lay_out(*args, Previous(np.full((300, 2), 0.1), at))
    assert separation(layout) > 0.98


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"point_ids": ["a", "a"]}, "repeats"),
        ({"point_ids": ["a"]}, "length"),
        ({"labels": np.array([0, 0, 0])}, "length"),
        ({"labels": np.array([0, 2])}, "labels"),
        ({"labels": np.array([-2, 0])}, "labels"),
        ({"labels": np.array([-1, -1])}, "labels"),
        ({"neighbours": np.array([[2], [0]])}, "neighbour"),
        ({"neighbours": np.array([[-2], [0]])}, "neighbour"),
        ({"similarities": np.array([[math.nan], [0]], dtype=np.float32)}, "similarity"),
        ({"similarities": np.array([[2], [0]], dtype=np.float32)}, "similarity"),
        ({"previous": Previous(np.zeros((1, 2)), {})}, "previous"),
        ({"previous": Previous(np.full((2, 2), math.inf), {})}, "previous"),
    ],
)
def test_bad_input_is_refused(change, told):
    """Each fault is named."""
    good = {
        "point_ids": ["a", "b"],
        "labels": np.array([0, 0]),
        "cluster_ids": ["c"],
        "neighbours": np.array([[1], [0]]),
        "similarities": np.ones((2, 1), dtype=np.float32),
    }
    assert lay_out(**good).positions.shape == (2, 2)
    with pytest.raises(ValueError, match=told):
        lay_out(**{**good, **change})
