"""The window of a rebuild in one basis, and the stored forms of a version."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.connectors.feeds.windows import (
    HISTORY_COLUMNS,
    choose_basis,
    clusters_json,
    dataset_of,
    evolved_events,
    found_json,
    history_rows,
    labels_of,
    last_version_of,
    outside_json,
)
from highwater.schemas.avro_files import parsed_schema
from highwater.streams.clock import to_datetime
from highwater.streams.feeds.curations import Curation, CurationKind, Part
from highwater.streams.feeds.recluster import recluster
from highwater.streams.feeds.versions import LastVersion, Window
from tests.unit.feeds import sample


def row(insight_id, **vectors: int):
    """A row of `rebuild_insights` whose vectors are given as basis=number of coordinates."""
    (basis, width), (next_basis, next_width) = (*vectors.items(), (None, None), (None, None))[:2]
    return {
        "insight_id": insight_id,
        "text": f"text of {insight_id}",
        "embedding_model": basis,
        "embedding": None if width is None else np.full(width, 1, dtype="<f4").tobytes(),
        "next_model": next_basis,
        "next_embedding": None if next_width is None else np.full(next_width, 2, dtype="<f4").tobytes(),
        "total": 7,
    }


def version(number=1, first=0, last=None, curations=()):
    """A version of real insights."""
    ids = tuple(one["insight_id"] for one in sample.insights())
    part = slice(first, first + 400)
    return recluster(Window(number, sample.vectors()[part], sample.texts()[part], ids[part], last, curations))


def stored(made, basis_id="b"):
    """A version as a row of `last_version`."""
    return {
        "clusters": clusters_json(made),
        "outside": outside_json(made),
        "neighbours": made.neighbours,
        "found": found_json(made),
        "basis_id": basis_id,
    }


def test_vectors_of_two_bases_never_meet():
    """Three insights in basis a, two in b: the data set holds the three, and says that two were left out."""
    rows = [row("1", a=4), row("2", b=4), row("3", a=4), row("4", b=4), row("5", a=4)]
    found = dataset_of(rows, "b")
    assert (found.basis_id, found.insight_ids, found.left_out, found.omitted) == ("a", ("1", "3", "5"), 2, 2)
    assert found.vectors.shape == (3, 4)
    assert found.texts == ("text of 1", "text of 3", "text of 5")


def test_vectors_of_two_lengths_never_meet_though_their_basis_has_one_name():
    """A model whose length was changed is two kinds of vector."""
    found = dataset_of([row("1", a=3), row("2", a=4), row("3", a=4)], "a")
    assert (found.insight_ids, found.left_out, found.vectors.shape) == (("2", "3"), 1, (2, 4))


def test_an_insight_with_vectors_in_two_bases_takes_part_in_either():
    """While a basis is rolled out, rows that have both follow those that have only one."""
    rows = [row("1", old=4, new=6), row("2", old=4, new=6), row("3", new=6)]
    found = dataset_of(rows, "old")
    assert (found.basis_id, found.left_out, found.vectors.shape) == ("new", 0, (3, 6))
    assert (found.vectors[:2] == 2).all()
    assert dataset_of(rows[:2], "old").basis_id == "old"


def test_an_empty_window_is_of_the_active_basis():
    """No insights: no vectors, nothing omitted."""
    found = dataset_of([], "a")
    assert (found.basis_id, len(found), found.omitted, found.left_out) == ("a", 0, 0, 0)
    assert recluster(Window(1, found.vectors, (), ())).clusters == ()


kinds = st.tuples(st.sampled_from("abc"), st.integers(1, 2))


@given(held=st.lists(st.sets(kinds, max_size=2), min_size=1, max_size=12), active=st.sampled_from("abc"))
def test_the_basis_is_the_one_of_most_insights(held, active):
    """No other kind covers more; of those that cover as many, one of the active basis is taken if there is one."""
    chosen = choose_basis(held, active)
    covers = {kind: sum(kind in one for one in held) for one in held for kind in one}
    if not covers:
        assert chosen == (active, 0)
        return
    assert covers[chosen] == max(covers.values())
    best = {kind for kind, count in covers.items() if count == covers[chosen]}
    assert chosen[0] == active or not any(kind[0] == active for kind in best)
    assert choose_basis(list(reversed(held)), active) == chosen


def test_a_version_is_read_back_as_it_was_stored():
    """Clusters, points outside, and neighbours survive the round through their stored forms."""
    made = version()
    assert last_version_of(stored(made), "b") == LastVersion(made.clusters, made.outside, made.neighbours)
    (first, second, third), order = made.clusters[:3], (1, 0, 1)
    curations = (
        Curation("m", CurationKind.MERGE, order, first.cluster_id, cluster_ids=(second.cluster_id,)),
        Curation("s", CurationKind.SPLIT, order, third.cluster_id, parts=(Part(third.insight_ids[:3]),)),
    )
    curated = version(2, 0, LastVersion(made.clusters, made.outside), curations)
    assert curated.found is not None
    assert last_version_of(stored(curated), "b") == LastVersion(
        curated.clusters, curated.outside, curated.neighbours, curated.found
    )


def test_a_version_from_before_there_were_themes_is_read_and_gets_them():
    """An older release stored no themes: its clusters have none, and the next version of the same window does."""
    made = version()
    row_before = stored(made)
    clusters = [
        {k: v for k, v in one.items() if k not in ("theme", "label_by")} for one in orjson.loads(row_before["clusters"])
    ]
    last = last_version_of({**row_before, "clusters": orjson.dumps(clusters).decode()}, "b")
    assert last is not None
    assert {one.theme for one in last.clusters} == {""}
    assert [replace(one, theme="") for one in made.clusters] == list(last.clusters)
    assert all(one.theme for one in version(2, 0, last).clusters)


def test_neighbours_of_another_basis_are_not_used():
    """Identity and map survive a change of basis; the lists of neighbours do not."""
    made = version()
    found = last_version_of(stored(made), "another")
    assert found is not None
    assert found.neighbours is None
    assert found.clusters == made.clusters


@pytest.mark.parametrize("old", [None, {"clusters": "[]", "outside": None, "neighbours": None, "basis_id": None}])
def test_there_is_no_last_version_before_clusters_had_an_identity(old):
    """The first version, and one stored before: nothing is continued."""
    assert last_version_of(old, "b") is None


def test_changes_are_told_as_rows_and_as_events():
    """Each change has a row and an event with the same numbers; a cluster that died keeps its last label."""
    before = version()
    last = LastVersion(before.clusters, before.outside, before.neighbours)
    after = version(2, 250, last)
    labels = labels_of(after, last)
    kinds_seen = {one.kind.value for one in after.changes}
    assert kinds_seen >= {"died", "born"}
    rows = history_rows(after, labels, "ada", 2, to_datetime(5), "feeds.rebuild-requested/0/1")
    events = evolved_events(after, labels, "ada", 2, 5, "feeds.rebuild-requested/0/1")
    names = {field["name"] for field in parsed_schema("feeds/ClusterEvolved.v1")["fields"]}
    assert len(rows) == len(events) == len(after.changes)
    for values, event in zip(rows, events, strict=True):
        assert set(event) == names
        named = dict(zip(HISTORY_COLUMNS, values, strict=True))
        assert {key: named[key] for key in names & set(named) - {"evolved_at"}} == {
            key: event[key] for key in names & set(named) - {"evolved_at"}
        }
    died = next(one for one in after.changes if one.kind.value == "died")
    assert labels[died.cluster_id] == next(c.label for c in before.clusters if c.cluster_id == died.cluster_id)


def test_a_cluster_is_called_what_it_is_called_now():
    """A continued cluster has its new label."""
    before = version()
    last = LastVersion(tuple(replace(one, label="old") for one in before.clusters), before.outside)
    assert labels_of(before, last) == {one.cluster_id: one.label for one in before.clusters}


def test_what_is_outside_says_where():
    """Places of points outside clusters are pairs, None for a text without a vector."""
    made = recluster(Window(1, np.vstack([sample.vectors()[:60], np.zeros((1, 384), "f4")]),
                            (*sample.texts()[:60], ""), tuple(map(str, range(61)))))  # fmt: skip
    outside = orjson.loads(outside_json(made))
    places = dict(zip(outside["insight_ids"], outside["positions"], strict=True))
    assert places["60"] is None
    assert sum(place is not None for place in places.values()) == len(places) - 1
