"""Clusters of a window: found where they are, independent of order, copies and history; bad input harms nothing else."""

import subprocess
import sys

import hdbscan
import numpy as np
import pytest
from hdbscan._hdbscan_linkage import label as single_linkage_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from highwater.streams.feeds import neighbours
from highwater.streams.feeds.clustering import (
    MEMBERSHIP_MIN,
    NOISE,
    Clustering,
    _branches,
    _tree,
    cluster_embeddings,
    cluster_size_for,
    neighbours_for,
)
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.feeds.graph import averaged, ties
from highwater.streams.feeds.neighbours import Neighbours
from tests import ROOT
from tests.unit.feeds import sample

PROJECT = ROOT


def same_partition(one, other) -> bool:
    """Whether two labellings are equal up to names, with noise being noise in both."""
    return len(set(zip(one.tolist(), other.tolist(), strict=True))) == len(set(one.tolist())) == len(
        set(other.tolist())
    ) and bool(((one == NOISE) == (other == NOISE)).all())


def topics(seed, sizes, width=32, spread=0.25):
    """Bundles of directions around random centres, as float32."""
    source = np.random.default_rng(seed)
    centres = source.normal(size=(len(sizes), width))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    rows = [
        centre + source.normal(scale=spread / width**0.5, size=(size, width))
        for centre, size in zip(centres, sizes, strict=True)
    ]
    return np.concatenate(rows).astype(np.float32)


def assert_equal(one: Clustering, other: Clustering) -> None:
    """Assert that all reported numbers are equal."""
    for name in ("labels", "memberships", "leanings", "confidences"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_digits_are_told_apart():
    """On the 1,797 handwritten digits: adjusted Rand index above 0.8, and less than a tenth noise."""
    digits = load_digits()
    found = cluster_embeddings(digits.data.astype(np.float32))
    assert adjusted_rand_score(digits.target, found.labels) > 0.8
    assert (found.labels == NOISE).mean() < 0.1


def test_most_real_commits_find_a_cluster():
    """Less than 40 % of 3,000 real commits are noise; the number of clusters is between a handful and a hundred."""
    found = cluster_embeddings(sample.vectors())
    assert (found.labels == NOISE).mean() < 0.4
    assert 10 < found.cluster_count < 100


def test_memberships_and_leanings_say_what_they_mean():
    """In a cluster: membership from 0.3 to 1 and no leaning. Noise: below 0.3, and a leaning has a confidence in 0..1."""
    found = cluster_embeddings(sample.vectors())
    inside = found.labels != NOISE
    assert found.memberships[inside].min() >= MEMBERSHIP_MIN
    assert found.memberships.max() <= 1
    assert found.memberships[~inside].max() < MEMBERSHIP_MIN
    assert (found.leanings[inside] == NOISE).all()
    assert (found.confidences[inside] == 0).all()
    leaning = found.leanings != NOISE
    assert leaning.any()
    assert ((found.confidences > 0) == leaning).all()
    assert found.confidences.max() <= 1
    assert set(found.leanings[leaning].tolist()) <= set(range(found.cluster_count))


def test_branches_are_those_of_hdbscan_on_the_same_graph():
    """The package, given the graph's distances as a sparse matrix, finds the same clusters with the same memberships."""
    found = cluster_embeddings(topics(7, [60, 80, 50, 70]))
    graph = ties(found.neighbours)
    vectors = averaged(found.distinct.rounded, graph)
    edges = coo_array(graph)
    lengths = np.maximum(np.linalg.norm(vectors[edges.row] - vectors[edges.col], axis=1), 0.05)
    lengths = csr_array((lengths.astype(np.float64), (edges.row, edges.col)), shape=graph.shape)
    whole = lengths.toarray()
    whole[whole == 0] = 1e3
    np.fill_diagonal(whole, 0)
    with np.errstate(all="ignore"):
        expected = hdbscan.HDBSCAN(metric="precomputed", min_cluster_size=8, min_samples=1).fit(whole)
    labels, strength = _branches(_tree(vectors, graph), len(vectors), 8)
    assert expected.labels_.max() >= 3
    assert same_partition(labels, expected.labels_)
    np.testing.assert_allclose(strength, expected.probabilities_, atol=1e-6)


def test_a_branch_of_most_points_is_chosen_only_if_nothing_in_it_is_stable():
    """Five topics near each other and a far one: excess of mass alone chooses the five as one branch. One topic of most
    points is a branch, however large.
    """
    # Six topics of twenty points: within each a distance of 1, five of them 1.2 apart, the sixth far.
    lengths = [1.2 if n % 20 == 0 else 1.0 for n in range(1, 100)] + [5.0] + [1.0] * 19
    edges = np.array([(n, n + 1, length) for n, length in enumerate(lengths)])
    tree = single_linkage_of(edges[np.argsort(edges[:, 2], kind="stable")])
    sizes = [np.bincount(_branches(tree, 120, 8, size_max=most)[0]).tolist() for most in (120, 30)]
    assert [sorted(one) for one in sizes] == [[20, 100], [20] * 6]
    found = cluster_embeddings(np.concatenate([topics(5, [90], spread=0.01), topics(6, [20], spread=0.01)]))
    assert np.bincount(found.labels[found.labels != NOISE]).max() >= 80


def test_a_point_joins_the_cluster_that_has_enough_of_its_ties():
    """Of those that stay outside hardly one has 45 % in one cluster, if it is a neighbour of another point; less than 30 %
    of 3,000 real commits stay outside.
    """
    found = cluster_embeddings(sample.vectors())
    firsts = np.unique(found.distinct.node_of_row, return_index=True)[1]
    is_neighbour = np.isin(np.arange(len(firsts)), found.neighbours.others)
    outside = (found.labels[firsts] == NOISE) & is_neighbour
    assert outside.any()
    assert (found.confidences[firsts][outside] >= 0.45).mean() < 0.02
    assert (found.labels == NOISE).mean() < 0.3


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_permuting_the_insights_permutes_the_labels(seed, sizes):
    """The labels of rows in another order are those rows' labels."""
    vectors = topics(seed, sizes)
    order = np.random.default_rng(seed).permutation(len(vectors))
    found, moved = cluster_embeddings(vectors), cluster_embeddings(vectors[order])
    for name in ("labels", "memberships", "leanings", "confidences"):
        np.testing.assert_array_equal(getattr(found, name)[order], getattr(moved, name))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(2, 40), min_size=1, max_size=6),
    copied=st.lists(st.integers(0, 2**16), min_size=1, max_size=5),
)
def test_a_copy_follows_its_original_and_moves_nothing_else(seed, sizes, copied):
    """Appending copies of rows leaves all other labels as they were and gives the copies those of their originals."""
    vectors = topics(seed, sizes)
    rows = np.unique(np.array(copied) % len(vectors))  # too few of each to make a cluster of repeats
    found, more = cluster_embeddings(vectors), cluster_embeddings(np.concatenate([vectors, vectors[rows]]))
    np.testing.assert_array_equal(more.labels[: len(vectors)], found.labels)
    np.testing.assert_array_equal(more.labels[len(vectors) :], found.labels[rows])
    np.testing.assert_array_equal(more.memberships[: len(vectors)], found.memberships)


def test_one_more_real_text_twice_moves_nothing():
    """On real commits, in 30 runs, a copy of one of them changes no other label (plain HDBSCAN: 14 of 30)."""
    vectors = sample.vectors()[:600]
    found = cluster_embeddings(vectors)
    for row in range(0, 600, 20):
        more = cluster_embeddings(np.concatenate([vectors, vectors[row : row + 1]]))
        np.testing.assert_array_equal(more.labels[:600], found.labels)


@pytest.mark.requirement("R0.3")
@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=5),
    windows=st.lists(st.tuples(st.integers(0, 125), st.integers(1, 60)), min_size=2, max_size=4),
)
def test_a_rebuild_that_knows_the_last_equals_one_from_nothing(seed, sizes, windows):
    """Over 200 random histories of windows, what the window before knew changes no number."""
    vectors = topics(seed, sizes)[np.random.default_rng(seed).permutation(sum(sizes))]
    known = None
    for first, length in windows:
        window = vectors[first % len(vectors) :][:length]
        found = cluster_embeddings(window, known=known)
        assert_equal(found, cluster_embeddings(window))
        known = Neighbours.from_bytes(found.kept.to_bytes())


def test_what_is_known_is_not_searched_again(monkeypatch):
    """The same window again, known: no list is searched."""
    vectors = sample.vectors()[:500]
    known = cluster_embeddings(vectors).kept
    searched = []
    monkeypatch.setattr(neighbours, "_search", lambda result, distinct, places: searched.append(len(places)))
    cluster_embeddings(vectors, known=known)
    assert searched == [0]


def test_the_number_of_blas_threads_changes_nothing():
    """One thread and two: the same numbers."""
    vectors = sample.vectors()[:1200]
    with threadpool_limits(1):
        expected = cluster_embeddings(vectors)
    with threadpool_limits(2):
        assert_equal(cluster_embeddings(vectors), expected)


def test_another_process_finds_the_same_clusters():
    """A fresh interpreter with another hash seed prints the same digest of all results."""
    program = (
        "import hashlib; from tests.unit.feeds import sample; from highwater.streams.feeds.clustering import cluster_embeddings\n"
        "c = cluster_embeddings(sample.vectors()[:700])\n"
        "print(hashlib.sha256(b''.join(x.tobytes() for x in (c.labels, c.memberships, c.leanings, c.confidences))).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], cwd=PROJECT, env={"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_ten_thousand_identical_texts_are_one_cluster():
    """A text that repeats is a cluster of its own though nothing is like it; all copies have membership 1."""
    vectors = np.repeat(TextEmbedder().embed(["Lock file maintenance"]), 10_000, axis=0)
    found = cluster_embeddings(vectors)
    assert (found.labels == 0).all()
    assert (found.memberships == 1).all()


def test_repeats_below_the_size_of_a_cluster_stay_noise():
    """Three copies of a text that nothing resembles are no cluster; four are."""
    lonely = np.zeros((1, 32), dtype=np.float32)
    lonely[0, 31] = 1
    base = topics(1, [20, 20])
    base[:, 31] = 0
    for times, is_cluster in ((3, False), (4, True)):
        found = cluster_embeddings(np.concatenate([base, np.repeat(lonely, times, axis=0)]), min_cluster_size=4)
        assert (found.labels[-1] != NOISE) == is_cluster


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_fewer_points_than_a_cluster_are_noise(n):
    """None, one, two or three insights are all noise, without an error."""
    found = cluster_embeddings(topics(0, [10])[:n])
    assert found.labels.tolist() == [NOISE] * n
    assert found.memberships.tolist() == [0.0] * n
    assert found.cluster_count == 0


def test_texts_that_say_nothing_are_noise_and_harm_nobody():
    """Empty texts and texts of zeros among real ones are noise, and the real ones are as without them."""
    texts = list(sample.texts()[:400])
    embedder = TextEmbedder()
    expected = cluster_embeddings(embedder.embed(texts))
    mixed = cluster_embeddings(embedder.embed([*texts, "", "   ", None, ""]))
    assert (mixed.labels[-4:] == NOISE).all()
    assert (mixed.memberships[-4:] == 0).all()
    np.testing.assert_array_equal(mixed.labels[:-4], expected.labels)


def test_all_zero_vectors_are_noise():
    """A window whose embeddings are all zero: noise throughout."""
    found = cluster_embeddings(np.zeros((50, 384), dtype=np.float32))
    assert (found.labels == NOISE).all()


def test_six_scripts_keep_apart():
    """Ten texts in each of six scripts: no cluster mixes two scripts."""
    words = {
        "latin": "the broker lost its leader again", "greek": "μεσίτης έχασε τον ηγέτη", "cyrillic": "брокер потерял лидера",
        "hebrew": "הברוקר איבד את המנהיג", "arabic": "فقد الوسيط قائده", "han": "代理失去了领导者",
    }  # fmt: skip
    scripts = [script for script in words for _ in range(10)]
    texts = [
        f"{words[script]} {words[script].split()[0]}{'abcdefghij'[i % 10] * 3}" for i, script in enumerate(scripts)
    ]
    found = cluster_embeddings(TextEmbedder().embed(texts))
    assert found.cluster_count >= 2
    for cluster in range(found.cluster_count):
        assert len({scripts[row] for row in np.flatnonzero(found.labels == cluster)}) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_refused(value):
    """It is an error of the window, not a cluster."""
    vectors = topics(0, [20])
    vectors[3, 3] = value
    with pytest.raises(ValueError, match="finite"):
        cluster_embeddings(vectors)


def test_cluster_size_grows_with_the_points():
    """A third of the root, from 4 to 15."""
    assert [cluster_size_for(n) for n in (0, 100, 400, 1_000, 1_800, 10_000)] == [4, 4, 7, 11, 14, 15]


def test_neighbours_grow_with_the_points():
    """0.55 of the root, from 5 to 15."""
    assert [neighbours_for(n) for n in (0, 60, 109, 250, 500, 750, 20_000)] == [5, 5, 6, 9, 12, 15, 15]


def test_a_small_window_is_not_one_cluster():
    """In every hundred real commits at least five clusters are found; with 15 neighbours there are often two."""
    for first in range(0, 2_900, 290):
        found = cluster_embeddings(sample.vectors()[first : first + 110])
        assert found.cluster_count >= 5
