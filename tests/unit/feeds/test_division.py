"""Clusters without a common subject are divided; those with a subject, and those of points without words, are not."""

from __future__ import annotations

import numpy as np
import pytest

from highwater.streams.feeds.clustering import MEMBERSHIP_MIN, NOISE, Clustering, cluster_embeddings
from highwater.streams.feeds.division import divide
from highwater.streams.feeds.graph import joined, leanings
from highwater.streams.feeds.labels import describe_clusters
from highwater.streams.feeds.naming import is_mixed
from tests.unit.feeds import sample

ROWS = 1_500


@pytest.fixture(scope="module")
def found() -> Clustering:
    """The clusters of real subjects as their vectors have them."""
    return cluster_embeddings(sample.vectors()[-ROWS:])


def labels_of(made: Clustering) -> list[tuple[str, int]]:
    """The labels of its clusters, and their sizes."""
    texts, ids = sample.texts()[-ROWS:], [str(row) for row in range(ROWS)]
    described = describe_clusters(made.labels, made.memberships, sample.vectors()[-ROWS:], texts, ids)
    return [(one.label, one.size) for one in described]


def test_fewer_members_are_in_clusters_without_a_subject(found: Clustering):
    """Each part is within one cluster, and a cluster with a subject keeps its members."""
    made = divide(found, sample.texts()[-ROWS:])
    assert sorted(set(made.labels.tolist()) - {NOISE}) == list(range(made.cluster_count))
    assert made.cluster_count > found.cluster_count
    was_inside = found.labels != NOISE
    for number in range(made.cluster_count):
        assert len(set(found.labels[was_inside & (made.labels == number)].tolist())) == 1
    before, after = labels_of(found), labels_of(made)
    mixed = [sum(size for label, size in told if is_mixed(label)) for told in (before, after)]
    assert mixed[1] < 0.5 * mixed[0]
    whole = [set(made.labels[found.labels == number].tolist()) for number in range(found.cluster_count)]
    assert sum(len(numbers) == 1 for numbers in whole) >= sum(not is_mixed(label) for label, _ in before)


def test_what_leans_to_a_divided_cluster_leans_to_a_part(found: Clustering):
    """To a cluster that there is, as the ties to its members have it; members lean nowhere, and all have a membership."""
    made = divide(found, sample.texts()[-ROWS:])
    leaning = made.leanings[made.leanings != NOISE]
    assert set(leaning.tolist()) <= set(range(made.cluster_count))
    assert ((made.leanings == NOISE) | (made.labels == NOISE)).all()
    assert (made.memberships[made.labels != NOISE] >= MEMBERSHIP_MIN).all()
    firsts = np.unique(made.distinct.node_of_row, return_index=True)[1]
    nearest, shares = leanings(made.labels[firsts], made.graph)
    is_noise = made.labels[firsts] == NOISE
    np.testing.assert_array_equal(made.leanings[firsts][is_noise], nearest[is_noise])
    np.testing.assert_array_equal(made.confidences[firsts][is_noise], shares[is_noise])


def test_what_leans_to_a_cluster_and_says_its_subject_belongs_to_it(found: Clustering):
    """More insights are in clusters, and no cluster with a subject loses it by those that came."""
    made = divide(found, sample.texts()[-ROWS:])
    came = (found.labels == NOISE) & (made.labels != NOISE)
    assert came.sum() > 0.02 * ROWS
    before = made.regrouped(np.where(came, NOISE, made.labels))
    mixed = [sum(is_mixed(label) for label, _ in labels_of(one)) for one in (before, made)]
    assert mixed[0] == mixed[1]
    np.testing.assert_array_equal(before.leanings[came], made.labels[came])
    assert (made.memberships[came] == np.maximum(before.confidences[came], MEMBERSHIP_MIN)).all()


def release_clusters(*groups: list[str]) -> tuple[Clustering, list[str]]:
    """Two clusters that are far apart by their vectors, and texts for their members."""
    texts = [text for group in groups for text in group]
    rng = np.random.default_rng(5)
    vectors = np.repeat(np.eye(len(groups), 24), [len(group) for group in groups], axis=0)
    vectors += rng.normal(0, 0.02, vectors.shape)
    made = cluster_embeddings(vectors.astype(np.float32), min_cluster_size=5)
    assert made.cluster_count == len(groups)
    return made, texts


NUMBERS = range(20, 32)


def test_clusters_of_the_same_leading_words_are_one():
    """Some models keep versions apart, and all clusters of them have one name; what has other words stays apart."""
    found, texts = release_clusters(
        [f"release: {n}.1.0" for n in NUMBERS],
        [f"release: {n}.2.3" for n in NUMBERS],
        [f"broker fails after restart {n}" for n in NUMBERS],
    )
    made = divide(found, texts)
    assert made.cluster_count == 2
    assert sorted(np.bincount(made.labels).tolist()) == [12, 24]
    assert len(set(made.labels[:24].tolist())) == 1


def test_a_shared_subject_alone_makes_no_one_cluster():
    """Enough of the leading words must be the same: two sides of a subject are two clusters."""
    found, texts = release_clusters(
        [f"consumer group rebalance protocol {n}" for n in NUMBERS],
        [f"consumer lag metrics dashboard {n}" for n in NUMBERS],
    )
    np.testing.assert_array_equal(divide(found, texts).labels, found.labels)


def test_words_of_every_text_unite_nothing():
    """Texts of one template that differ in one word have a cluster for each such word."""
    found, texts = release_clusters(
        *(
            [f"Fix the {part} when the input of case {n} is empty" for n in NUMBERS]
            for part in ("parser", "cache", "broker")
        )
    )
    np.testing.assert_array_equal(divide(found, texts).labels, found.labels)


def test_clusters_that_have_no_subject_together_stay_apart():
    """The same words, each in less than half of the members, do not unite clusters."""
    mixed = [f"{word} {n}" for n, word in zip(NUMBERS, ("cache", "tests", "docs") * 4, strict=True)]
    found, texts = release_clusters(mixed, mixed)
    np.testing.assert_array_equal(divide(found, texts).labels, found.labels)


def test_rows_of_one_direction_stay_together():
    """If two texts have one vector that leans to a cluster, the one without its subject joins with the other."""
    vectors, texts = sample.vectors()[-ROWS:], list(sample.texts()[-ROWS:])
    found = cluster_embeddings(vectors)
    row = int(np.flatnonzero((found.labels == NOISE) & (divide(found, texts).labels != NOISE))[0])
    twice = cluster_embeddings(np.vstack([vectors, vectors[row : row + 1]]))
    made = divide(twice, [*texts, "Zzyzx"])
    assert made.labels[-1] == made.labels[row] != NOISE


def test_points_without_words_stay_as_they_are(found: Clustering):
    """Digits have no texts: their clusters are those of their vectors."""
    assert divide(found, [None] * ROWS) is found


def test_the_order_of_rows_does_not_matter(found: Clustering):
    """The groups are the same for any order."""
    order = np.random.default_rng(3).permutation(ROWS)
    texts = sample.texts()[-ROWS:]
    other = divide(cluster_embeddings(sample.vectors()[-ROWS:][order]), [texts[row] for row in order.tolist()])
    made = divide(found, texts)
    groups = [
        {frozenset(rows.tolist()) for rows in _rows(labels)} for labels in (made.labels, _back(other.labels, order))
    ]
    assert groups[0] == groups[1]


def _rows(labels: np.ndarray) -> list[np.ndarray]:
    return [np.flatnonzero(labels == number) for number in range(int(labels.max()) + 1)]


def _back(labels: np.ndarray, order: np.ndarray) -> np.ndarray:
    result = np.empty_like(labels)
    result[order] = labels
    return result


def test_fragments_of_two_groups_stay_apart():
    """With `within` no group is joined with one of another, however many ties they have."""
    from scipy.sparse import csr_array

    ties = np.ones((6, 6), dtype=np.float32) - np.eye(6, dtype=np.float32)
    ties[:2, 2:4] = ties[2:4, :2] = 9
    labels = np.array([0, 0, 1, 1, 2, 2])
    assert joined(labels, csr_array(ties)).tolist() == [0, 0, 0, 0, 1, 1]
    assert joined(labels, csr_array(ties), within=np.array([0, 0, 1, 1, 1, 1])).tolist() == [0, 0, 1, 1, 2, 2]
