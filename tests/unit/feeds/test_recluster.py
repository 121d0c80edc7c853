"""A version of a user's clusters: made from a window and the version before it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.streams.feeds import neighbours
from highwater.streams.feeds.clustering import MEMBERSHIP_MIN
from highwater.streams.feeds.curations import Curation, CurationKind
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.feeds.recluster import recluster
from highwater.streams.feeds.versions import LastVersion, NewVersion, Window
from tests.unit.feeds import sample

IDS = tuple(one["insight_id"] for one in sample.insights())


def window(first: int, last: int, version: int = 1, before: NewVersion | None = None, **kept: None) -> Window:
    """The insights of the sample from `first` to `last`."""
    part = slice(first, last)
    known = (
        None if before is None else LastVersion(before.clusters, before.outside, kept.get("known", before.neighbours))
    )
    return Window(version, sample.vectors()[part], sample.texts()[part], IDS[part], known)


def members(version: NewVersion) -> dict[str, str]:
    """The cluster of each insight that is in one."""
    return {insight_id: one.cluster_id for one in version.clusters for insight_id in one.insight_ids}


def test_every_insight_is_in_one_cluster_or_outside():
    """Sizes and noise add up to the window; parallel lists are parallel; nearby ones are outside."""
    made = recluster(window(0, 1000))
    outside = set(made.outside.insight_ids)
    assert sorted([*members(made), *outside]) == sorted(IDS[:1000])
    assert made.noise_count + sum(one.size for one in made.clusters) == 1000
    assert [one.size for one in made.clusters] == sorted((one.size for one in made.clusters), reverse=True)
    assert len({one.cluster_id for one in made.clusters}) == len(made.clusters) >= 5
    for one in made.clusters:
        assert one.size == len(one.insight_ids) == len(one.confidences) == len(one.since) == len(one.positions)
        assert one.representative_id in one.insight_ids
        assert MEMBERSHIP_MIN <= min(one.confidences) <= max(one.confidences) <= 1
        assert set(one.nearby_ids) <= outside
        assert list(one.nearby_confidences) == sorted(one.nearby_confidences, reverse=True)
        assert one.label
        assert one.keywords
        assert one.summary
    assert len(made.outside.positions) == len(made.outside.insight_ids)
    assert any(one.nearby_ids for one in made.clusters)


def test_the_first_version_is_born():
    """Every cluster is born in it, and its members entered then."""
    made = recluster(window(0, 600, version=4))
    assert [one.kind.value for one in made.changes] == ["born"] * len(made.clusters)
    assert {(one.born_version, one.changed_version, *one.since) for one in made.clusters} == {
        (4, 4, *[4] * one.size) for one in made.clusters
    }


def test_the_same_window_again_changes_nothing_a_reader_sees():
    """Ids, members and words are unchanged, no change is reported, and nothing on the map moves by more
    than a hundredth of it.
    """
    first = recluster(window(0, 900))
    again = recluster(window(0, 900, version=2, before=first))
    assert again.changes == ()
    assert members(again) == members(first)
    for before, after in zip(first.clusters, again.clusters, strict=True):
        assert (before.label, before.since, before.changed_version) == (after.label, after.since, after.changed_version)
        assert before.theme == after.theme != ""
        np.testing.assert_allclose(after.positions, before.positions, atol=0.02)


def test_ids_outlive_a_window_that_moves_on():
    """With a tenth of the window gone and a tenth new, most insights stay in a cluster of the same id."""
    first = recluster(window(0, 1500))
    second = recluster(window(150, 1650, version=2, before=first))
    were, are = members(first), members(second)
    both = [insight_id for insight_id in were if insight_id in are]
    assert len(both) > 500
    assert sum(were[insight_id] == are[insight_id] for insight_id in both) / len(both) > 0.6
    stayed = {one.cluster_id for one in first.clusters} & {one.cluster_id for one in second.clusters}
    assert all(one.born_version == 1 for one in second.clusters if one.cluster_id in stayed)
    assert all(one.born_version == 2 for one in second.clusters if one.cluster_id not in stayed)
    entered = {i: since for one in second.clusters for i, since in zip(one.insight_ids, one.since, strict=True)}
    for insight_id, since in entered.items():
        assert since == (1 if were.get(insight_id) == are[insight_id] else 2)


def test_what_was_in_the_window_before_did_not_arrive():
    """An insight from outside a cluster joined it, but did not arrive: only insights that are new in the window did."""
    first = recluster(window(0, 1500))
    second = recluster(window(150, 1650, version=2, before=first))
    were, ids = members(first), {one.cluster_id: set(one.insight_ids) for one in second.clusters}
    told = [one for one in second.changes if one.kind.value in ("born", "grew", "shrank")]
    assert told
    for one in told:
        assert one.arrived == len(ids[one.cluster_id] & set(IDS[1500:1650]))
        assert one.joined == sum(were.get(insight_id) != one.cluster_id for insight_id in ids[one.cluster_id])
    assert sum(one.joined for one in told) > sum(one.arrived for one in told)
    for part in (*second.clusters, second.outside):
        assert part.arrived == tuple(2 if insight_id in IDS[1500:1650] else 1 for insight_id in part.insight_ids)


def test_neighbours_that_are_known_are_not_searched_again(monkeypatch):
    """The same window after itself searches no list."""
    first = recluster(window(0, 300))
    searched = []
    monkeypatch.setattr(neighbours, "_search", lambda result, distinct, places: searched.append(len(places)))
    recluster(window(0, 300, version=2, before=first))
    assert searched == [0]


def test_the_map_does_not_jump():
    """Points that stay in their cluster over a small change of the window hardly move: half of them by less than 2 % of the
    map.
    """
    first = recluster(window(0, 1500))
    second = recluster(window(30, 1530, version=2, before=first))
    were = {i: p for one in first.clusters for i, p in zip(one.insight_ids, one.positions, strict=True)}
    are = {i: p for one in second.clusters for i, p in zip(one.insight_ids, one.positions, strict=True)}
    same = [i for i in were if i in are and members(first)[i] == members(second)[i]]
    moved = [np.hypot(*np.subtract(are[i], were[i])) for i in same]
    assert np.median(moved) < 0.04


@settings(max_examples=12, deadline=None)
@given(first=st.integers(0, 2000), length=st.integers(0, 260), step=st.integers(0, 40), seed=st.integers(0, 99))
def test_order_and_history_do_not_change_a_version(first, length, step, seed):
    """Clusters and words are the same from a permuted window, and with or without the neighbours that were stored."""
    before = recluster(window(first, first + length))
    usual = recluster(window(first + step, first + step + length, version=2, before=before))
    from_nothing = recluster(window(first + step, first + step + length, version=2, before=before, known=None))
    assert replace(usual, neighbours=b"") == replace(from_nothing, neighbours=b"")
    given_window = window(first + step, first + step + length, version=2, before=before)
    order = np.random.default_rng(seed).permutation(len(given_window.texts))
    permuted = recluster(
        Window(2, given_window.vectors[order], tuple(given_window.texts[i] for i in order),
               tuple(given_window.insight_ids[i] for i in order), given_window.last)
    )  # fmt: skip
    assert members(permuted) == members(usual)
    assert [(one.cluster_id, one.label, one.keywords, one.theme) for one in permuted.clusters] == [
        (one.cluster_id, one.label, one.keywords, one.theme) for one in usual.clusters
    ]
    assert permuted.changes == usual.changes


@pytest.mark.parametrize(
    ("texts", "clusters"),
    [
        (["only one"], 0),
        (["Lock file maintenance"] * 500, 1),
        ([""] * 20, 0),
        (["the of and"] * 3 + ["to be or not to be"] * 2, 0),
        ([None, "", "   ", "\u0000"], 0),
    ],
)
def test_windows_with_little_to_say(texts, clusters):
    """One insight, 500 identical ones, empty ones, only stop words: no error, and every insight is accounted for."""
    vectors = TextEmbedder().embed(texts)
    made = recluster(Window(1, vectors, tuple(texts), tuple(map(str, range(len(texts))))))
    assert len(made.clusters) == clusters
    assert made.noise_count + sum(one.size for one in made.clusters) == len(texts)


def test_copies_share_a_place():
    """Identical texts stand on one point of the map."""
    texts = (*sample.texts()[:200], *["Lock file maintenance"] * 30)

    made = recluster(Window(1, TextEmbedder().embed(texts), texts, tuple(map(str, range(230)))))
    places = {
        place
        for one in made.clusters
        for insight_id, place in zip(one.insight_ids, one.positions, strict=True)
        if int(insight_id) >= 200
    }
    assert len(places) == 1


def test_other_vectors_keep_a_cluster_that_is_about_the_same():
    """Most of a cluster moves to another by other vectors: the rest, of the same subject, is still the cluster, and has
    the name that its reader gave it.
    """
    texts = tuple(
        f"{word} {n}" for word, count in (("kafka topic", 24), ("docs", 20), ("cache", 20)) for n in range(count)
    )
    ids = tuple(f"i{place:02}" for place in range(len(texts)))
    own = np.repeat([0, 1, 2], [24, 20, 20])
    moved = np.where(np.arange(64) < 17, 1, own)

    def window_of(version: int, place: np.ndarray, last: LastVersion | None = None, curations=()) -> Window:
        spread = np.random.default_rng(version).normal(0, 0.05, (64, 16))
        return Window(version, (np.eye(3, 16)[place] + spread).astype(np.float32), texts, ids, last, curations)

    first = recluster(window_of(1, own))
    named = Curation("r", CurationKind.RENAME, (1, 0, 0), first.clusters[0].cluster_id, label="My own")
    second = recluster(window_of(2, moved, LastVersion(first.clusters, first.outside), (named,)))
    assert [(one.label, one.size) for one in first.clusters] == [("Kafka topic", 24), ("Docs", 20), ("Cache", 20)]
    assert [(one.label, one.size, one.born_version) for one in second.clusters] == [
        ("Docs", 37, 1),
        ("Cache", 20, 1),
        ("My own", 7, 1),
    ]
