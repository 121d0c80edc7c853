"""Themes: few for many clusters, each cluster in one, called by the same rule as clusters."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from highwater.streams.feeds.clustering import cluster_embeddings
from highwater.streams.feeds.labels import describe_clusters
from highwater.streams.feeds.naming import EXAMPLES, is_mixed
from highwater.streams.feeds.themes import group_clusters, theme_count
from tests.bench.cluster_labels import coverage
from tests.unit.feeds import sample


@pytest.mark.parametrize(("clusters", "themes"), [(0, 0), (1, 1), (4, 4), (5, 3), (16, 5), (50, 8), (400, 23)])
def test_fifty_clusters_are_read_as_eight(clusters: int, themes: int) -> None:
    """Few clusters are themes themselves."""
    assert theme_count(clusters) == themes


def test_what_lies_together_is_one_theme_whatever_the_order() -> None:
    """Three bundles of directions are three themes; the order of clusters changes no group, and lengths are ignored."""
    rng = np.random.default_rng(7)
    bundles = np.repeat(np.eye(3), [4, 3, 2], axis=0)
    centres = (bundles + rng.normal(0, 0.05, bundles.shape)) * rng.uniform(0.5, 2, (9, 1))
    keys = [f"id{place}" for place in range(9)]
    found = group_clusters(list(centres), keys)
    assert [found[:4].count(found[0]), found[4:7].count(found[4]), found[7:].count(found[7])] == [4, 3, 2]
    order = rng.permutation(9)
    assert group_clusters([centres[i] for i in order], [keys[i] for i in order]) == [found[i] for i in order]


def test_where_all_are_equally_far_the_keys_decide() -> None:
    """Equal distances are taken in the order of the keys, so rows in another order make the same themes."""
    keys = [f"id{place}" for place in range(6)]
    centres = dict(zip(keys, np.vstack([np.eye(3), -np.eye(3)]), strict=True))

    def themes(order: list[str]) -> set[frozenset[str]]:
        found = group_clusters([centres[key] for key in order], order)
        return {frozenset(key for key, number in zip(order, found, strict=True) if number == own) for own in found}

    assert len(themes(keys)) > 1
    for seed in range(5):
        assert themes(np.random.default_rng(seed).permutation(keys).tolist()) == themes(keys)


def test_clusters_without_a_direction_are_in_a_theme_too() -> None:
    """Centres of nothing but zeros, or all alike, are no error."""
    keys = [f"id{place}" for place in range(6)]
    assert len(group_clusters([np.zeros(3)] * 6, keys)) == 6
    assert len(group_clusters([np.ones(3)] * 6, keys)) == 6
    assert group_clusters([], []) == []


def test_real_clusters_have_themes_that_half_of_their_members_say() -> None:
    """Each theme is called by its own members, by its clusters' subjects, or mixed; no two have one name. One cluster alone
    gives its label.
    """
    texts = sample.texts()
    ids = [one["insight_id"] for one in sample.insights()]
    found = cluster_embeddings(sample.vectors())
    described = describe_clusters(found.labels, found.memberships, sample.vectors(), texts, ids)
    text_of = dict(zip(ids, texts, strict=True))
    sizes = Counter(one.theme for one in described)
    assert 2 <= len(sizes) <= theme_count(len(described)) < len(described)
    assert len({theme.lower() for theme in sizes}) == len(sizes)
    for theme in sizes:
        own = [one for one in described if one.theme == theme]
        said = [text_of[insight_id] for one in own for insight_id in one.insight_ids]
        assert theme
        subjects = " ".join(one.label.partition(EXAMPLES)[0].lower() for one in own)
        lists_them = all(part in subjects for part in theme.lower().split(", "))
        assert is_mixed(theme) or lists_them or coverage(theme, said) >= 0.5
        assert len(own) > 1 or theme == own[0].label


def test_a_theme_keeps_its_name_while_it_is_true() -> None:
    """As a label does; a name that was never true goes."""
    groups = [
        [f"{subject} {word} lost" for word in "abcde"] for subject in ("cache", "broker", "offset", "tests", "docs")
    ]
    texts = [text for group in groups for text in group]
    labels = np.repeat(np.arange(5), 5)
    vectors = np.repeat(np.eye(5, 3, dtype=np.float32) + np.float32(0.01), 5, axis=0)
    ids = [f"id{place:02}" for place in range(25)]
    first = describe_clusters(labels, np.ones(25), vectors, texts, ids)
    theme = next(theme for theme, times in Counter(one.theme for one in first).items() if times > 1)
    own = [insight_id for one in first if one.theme == theme for insight_id in one.insight_ids]
    turned = "Lost, e.g. tests"
    for before, after in ((turned, turned), ("Falcon", theme), ("Broker lost, tests", theme)):
        again = describe_clusters(labels, np.ones(25), vectors, texts, ids, former_themes={before: own})
        assert {one.theme for one in again} - ({one.theme for one in first} - {theme}) == {after}
