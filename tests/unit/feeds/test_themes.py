"""Themes: few for many clusters, each cluster in one, by what clusters have in common and then by closeness."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from highwater.streams.feeds.themes import Theme, find_themes, group_clusters, theme_count

KEYS = [f"id{place}" for place in range(9)]
NOTHING = np.zeros((9, 3))


def centres(count: int = 9) -> list[NDArray[np.float64]]:
    """As many directions, each its own."""
    return list(np.eye(count))


@pytest.mark.parametrize(("clusters", "themes"), [(0, 0), (1, 1), (4, 4), (5, 3), (9, 4), (24, 8), (50, 8), (400, 23)])
def test_fifty_clusters_are_read_as_eight(clusters: int, themes: int) -> None:
    """Few clusters are themes themselves, and up to fifty have at most eight."""
    assert theme_count(clusters) == themes


def test_clusters_with_a_word_in_common_are_one_theme() -> None:
    """A cluster is under the word that says most about it, and a word of one cluster makes no theme."""
    values = NOTHING.copy()
    values[[0, 1, 2], 0] = 0.9, 0.8, 0.7
    values[[1, 3, 4], 1] = 0.9, 0.6, 0.5
    values[5, 2] = 0.9
    found = find_themes(values, NOTHING, centres(), KEYS)
    assert found[:2] == [Theme((0, 2), 0), Theme((1, 3, 4), 1)]
    assert sorted(place for theme in found for place in theme.places) == list(range(9))
    assert all(theme.word is None for theme in found[2:])


def test_a_word_whose_clusters_went_to_others_makes_no_theme() -> None:
    """The first word had four clusters, three of which say more with another; the fourth alone makes no theme."""
    values = NOTHING.copy()
    values[:4, 0] = 0.5
    values[[0, 1, 4, 5], 1] = 0.6, 0.6, 0.1, 0.1
    values[[2, 6, 7], 2] = 0.6, 0.1, 0.1
    found = find_themes(values, NOTHING, centres(), KEYS)
    assert [theme for theme in found if theme.word is not None] == [Theme((0, 1, 4, 5), 1), Theme((2, 6, 7), 2)]
    assert {place for theme in found if theme.word is None for place in theme.places} == {3, 8}


def test_a_cluster_without_a_theme_joins_the_one_that_it_is_near() -> None:
    """Less is required where a theme exists, and it makes none."""
    values, near = NOTHING.copy(), NOTHING.copy()
    values[:2, 0] = 0.9
    near[2, 0], near[3:6, 1] = 0.2, 0.3
    found = find_themes(values, near, centres(), KEYS)
    assert [theme for theme in found if theme.word is not None] == [Theme((0, 1, 2), 0)]


def test_the_order_of_clusters_changes_no_theme() -> None:
    """Also where all are equally far apart and two words say as much: the keys decide."""
    values = NOTHING.copy()
    values[:3, :2] = 0.5
    points = np.vstack([np.eye(3), np.eye(3), -np.eye(3)])

    def themes(order: list[int]) -> set[tuple[frozenset[str], int | None]]:
        found = find_themes(values[order], NOTHING, [points[i] for i in order], [KEYS[i] for i in order])
        return {(frozenset(KEYS[order[place]] for place in theme.places), theme.word) for theme in found}

    usual = themes(list(range(9)))
    for seed in range(5):
        assert themes(np.random.default_rng(seed).permutation(9).tolist()) == usual


def test_what_lies_together_is_one_group() -> None:
    """Three bundles of directions are three groups; lengths are ignored, and centres without a direction are accepted."""
    rng = np.random.default_rng(7)
    bundles = np.repeat(np.eye(3), [4, 3, 2], axis=0)
    points = (bundles + rng.normal(0, 0.05, bundles.shape)) * rng.uniform(0.5, 2, (9, 1))
    found = group_clusters(list(points), 3)
    assert [found[:4].count(found[0]), found[4:7].count(found[4]), found[7:].count(found[7])] == [4, 3, 2]
    assert len(group_clusters([np.zeros(3)] * 6, 2)) == len(group_clusters([np.ones(3)] * 6, 2)) == 6
    assert group_clusters([], 3) == []
