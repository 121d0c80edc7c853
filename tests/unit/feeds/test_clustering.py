"""Exact HDBSCAN: the package itself is the oracle."""

import subprocess
import sys
from pathlib import Path

import hdbscan
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from streams.feeds import screening
from streams.feeds.clustering import (
    DENSE_BYTES_MAX,
    NOISE,
    Clustering,
    choose_route,
    cluster_embeddings,
    cluster_size_for,
)
from streams.feeds.reachability import BLOCK_BYTES, DistinctVectors
from tests.unit.feeds import sample

ROUTES = ("dense", "screened")
PROJECT = Path(__file__).parents[3]


def oracle(vectors, min_cluster_size=10, min_samples=None):
    """The result of hdbscan itself."""
    with np.errstate(all="ignore"):
        return hdbscan.HDBSCAN(min_cluster_size=min_cluster_size, min_samples=min_samples, core_dist_n_jobs=1).fit(
            vectors
        )


def assert_same(expected, found: Clustering) -> None:
    """Labels, probabilities and persistence equal bit for bit."""
    np.testing.assert_array_equal(found.labels, expected.labels_)
    np.testing.assert_array_equal(found.probabilities, expected.probabilities_)
    np.testing.assert_array_equal(found.persistence, expected.cluster_persistence_)


def test_text_vectors_get_the_very_labels_of_hdbscan_by_both_routes():
    """On 2,000 real commit subjects, repeats included, labels and probabilities equal hdbscan's bit for bit."""
    vectors = sample.vectors()[:2000]
    assert len(np.unique(vectors, axis=0)) < len(vectors)
    expected = oracle(vectors)
    assert expected.labels_.max() >= 5
    for route in ROUTES:
        assert_same(expected, cluster_embeddings(vectors, route=route))


@pytest.mark.parametrize(("size", "samples"), [(2, 1), (5, 3), (7, 20), (40, None), (5, 400)])
def test_other_parameters_are_as_exact(size, samples):
    """Any min_cluster_size and min_samples give hdbscan's labels by both routes."""
    vectors = sample.vectors()[-500:]
    expected = oracle(vectors, size, samples)
    for route in ROUTES:
        assert_same(expected, cluster_embeddings(vectors, min_cluster_size=size, min_samples=samples, route=route))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(12, 90),
    width=st.sampled_from([2, 3, 64, 70]),
    levels=st.integers(1, 4),
    size=st.integers(2, 12),
    repeats=st.integers(0, 60),
)
def test_ties_and_repeats_are_broken_as_hdbscan_breaks_them(seed, n, width, levels, size, repeats):
    """Vectors of few levels tie almost everywhere; with copies mixed in, both routes still give Prim's own tree."""
    source = np.random.default_rng(seed)
    vectors = source.integers(-levels, levels + 1, (n, width)).astype(np.float32)
    vectors = np.concatenate([vectors, vectors[source.integers(0, n, repeats)]])
    vectors = np.ascontiguousarray(vectors[source.permutation(len(vectors))])
    with np.errstate(all="ignore"):
        expected = hdbscan.HDBSCAN(min_cluster_size=size, algorithm="prims_kdtree", core_dist_n_jobs=1).fit(vectors)
    for route in ROUTES:
        found = cluster_embeddings(vectors, min_cluster_size=size, route=route)
        np.testing.assert_array_equal(found.labels, expected.labels_)


def test_when_the_screen_holds_too_many_edges_rows_are_computed_one_by_one(monkeypatch):
    """Past the limit on edges the screened route keeps none, and its labels stay the same."""
    vectors = sample.vectors()[:700]
    expected = cluster_embeddings(vectors, route="dense")
    monkeypatch.setattr(screening, "EDGES_PER_NODE_MAX", 0)
    distinct = DistinctVectors.of(vectors)
    assert isinstance(screening.screened_neighbours(distinct, 10)[1], screening.RowNeighbours)
    found = cluster_embeddings(vectors, route="screened")
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.probabilities, expected.probabilities)


def test_blocks_of_any_height_give_the_same_tree(monkeypatch):
    """The size of a block decides memory, never labels."""
    vectors = sample.vectors()[:700]
    expected = cluster_embeddings(vectors, route="dense")
    for height in (1, 7, 333):
        monkeypatch.setattr("streams.feeds.reachability.BLOCK_BYTES", 4 * 700 * height)
        monkeypatch.setattr(screening, "BLOCK_BYTES", 4 * 700 * height)
        for route in ROUTES:
            np.testing.assert_array_equal(cluster_embeddings(vectors, route=route).labels, expected.labels)


def test_far_groups_without_near_edges_between_them_are_bridged():
    """Groups whose nearest nodes are all their own are joined into one tree, whatever their number."""
    source = np.random.default_rng(3)
    centres = source.normal(size=(12, 64)) * 50
    vectors = (np.repeat(centres, 40, axis=0) + source.normal(size=(480, 64))).astype(np.float32)
    expected = oracle(vectors)
    assert expected.labels_.max() == 11
    assert_same(expected, cluster_embeddings(vectors, route="screened"))


@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_fewer_points_than_a_cluster_are_noise(n):
    """Below min_cluster_size there is no cluster, and no error."""
    found = cluster_embeddings(sample.vectors()[:n])
    assert [NOISE] * n == found.labels.tolist()
    assert [0.0] * n == found.probabilities.tolist()
    assert found.cluster_count == 0


@pytest.mark.parametrize("n", [10, 11, 12, 300])
def test_identical_vectors_are_noise_as_hdbscan_says(n):
    """Equal points have nothing to tell them apart: one tie, no cluster; zero vectors are such points."""
    for vectors in (np.ones((n, 64), np.float32), np.zeros((n, 64), np.float32)):
        found = cluster_embeddings(vectors)
        np.testing.assert_array_equal(found.labels, oracle(vectors).labels_)
        assert found.cluster_count == 0


def test_repeats_by_the_hundred_and_empty_texts_stay_exact():
    """300 copies of one subject, 150 of another and 60 empty texts among 600 others: hdbscan's labels."""
    vectors = sample.vectors()[:600]
    mixed = np.concatenate(
        [np.repeat(vectors[5:6], 300, 0), vectors, np.zeros((60, 384), np.float32), np.repeat(vectors[9:10], 150, 0)]
    )
    mixed = np.ascontiguousarray(mixed[np.random.default_rng(1).permutation(len(mixed))])
    expected = oracle(mixed)
    assert expected.labels_.max() >= 2
    for route in ROUTES:
        assert_same(expected, cluster_embeddings(mixed, route=route))


def test_minus_zero_is_zero():
    """-0.0 and 0.0 differ in bytes, not in value: such rows are copies of each other."""
    vectors = np.zeros((4, 3), np.float32)
    vectors[2] = -0.0
    assert len(DistinctVectors.of(vectors)) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_a_value_that_is_not_finite_or_out_of_range_is_refused(value):
    """One bad value in any row raises ValueError."""
    vectors = sample.vectors()[:20].copy()
    vectors[13, 7] = value
    with pytest.raises(ValueError, match="vectors hold a value"):
        cluster_embeddings(vectors)


def test_wrong_shapes_and_parameters_are_refused():
    """float64, one dimension, a cluster of one and no samples are errors of the caller."""
    vectors = sample.vectors()[:20]
    for bad in (vectors.astype(np.float64), vectors[0]):
        with pytest.raises(ValueError, match="float32"):
            cluster_embeddings(bad)
    with pytest.raises(ValueError, match="at least"):
        cluster_embeddings(vectors, min_cluster_size=1)
    with pytest.raises(ValueError, match="at least"):
        cluster_embeddings(vectors, min_samples=0)


def test_the_number_of_blas_threads_changes_nothing():
    """float32 products only screen, so one thread and two give the same bits."""
    vectors = sample.vectors()[:1500]
    for route in ROUTES:
        with threadpool_limits(1):
            one = cluster_embeddings(vectors, route=route)
        two = cluster_embeddings(vectors, route=route)
        np.testing.assert_array_equal(one.labels, two.labels)
        np.testing.assert_array_equal(one.probabilities, two.probabilities)


def test_another_process_finds_the_same_clusters():
    """Text to labels is the same in a fresh interpreter with another hash seed."""
    program = (
        "from tests.unit.feeds import sample; from streams.feeds.clustering import cluster_embeddings as c;"
        "import hashlib; print(hashlib.sha256(c(sample.vectors()[:400], min_cluster_size=4).labels.tobytes())"
        ".hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=PROJECT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(PROJECT)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_the_dense_matrix_never_exceeds_its_budget():
    """The route turns where one float32 per pair would pass the budget; blocks are far below it."""
    assert choose_route(10_000) == "dense"
    assert choose_route(20_000) == "screened"
    edge = int((DENSE_BYTES_MAX / 4) ** 0.5)
    assert (choose_route(edge), choose_route(edge + 1)) == ("dense", "screened")
    assert BLOCK_BYTES * 10 < DENSE_BYTES_MAX


def test_cluster_size_grows_with_the_points():
    """Small datasets get small clusters; at 10,000 it is the package's 10 and stays there."""
    assert [cluster_size_for(n) for n in (0, 500, 2_500, 10_000, 20_000)] == [4, 4, 5, 10, 10]
