"""Curations of clusters by readers: how their events are checked, folded, and applied to a version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.feeds import ClusterPart, ClustersCurated
from highwater.streams.feeds.curations import (
    CURATIONS_MAX,
    LABEL_BYTES_MAX,
    MERGED_MAX,
    NAMED_MAX,
    PARTS_MAX,
    Curation,
    CurationKind,
    check_curated,
    curation_from,
    curation_json,
    curation_of,
    fold_curations,
    wish_of,
)
from highwater.streams.feeds.recluster import recluster
from highwater.streams.feeds.versions import Cluster, LastVersion, NewVersion, Window
from tests.unit.feeds import sample

IDS = tuple(one["insight_id"] for one in sample.insights())
# Windows of the sample: one, and two that move on by eight insights each.
SIZE, STEP = 400, 8


def event(kind: str, **values: Any) -> ClustersCurated:
    """A curation as it is sent."""
    whole: dict[str, Any] = {"label": None, "cluster_ids": [], "parts": [], "curation_id": None, **values}
    return ClustersCurated(user_id="ada", ts=1, kind=kind, **{"cluster_id": "", **whole})


def rename(cluster_id: str, label: str, at: int = 1) -> Curation:
    """A cluster is called otherwise."""
    return curation_of(event("rename", cluster_id=cluster_id, label=label), (at, 0, at))


def merge(cluster_id: str, *others: str, at: int = 1) -> Curation:
    """Clusters are one."""
    return curation_of(event("merge", cluster_id=cluster_id, cluster_ids=list(others)), (at, 0, at))


def split(cluster_id: str, *parts: tuple[str, ...], at: int = 1, label: str | None = None) -> Curation:
    """A cluster is several."""
    told = [ClusterPart(insight_ids=list(part), label=label) for part in parts]
    return curation_of(event("split", cluster_id=cluster_id, parts=told), (at, 0, at))


def wish(words: str, at: int = 1) -> Curation:
    """Clusters should be named in this way."""
    return curation_of(event("wish", label=words), (at, 0, at))


def undo(curation: Curation, at: int) -> Curation:
    """A curation is retracted."""
    return curation_of(event("undo", curation_id=curation.curation_id), (at, 0, at))


def version(
    number: int, before: NewVersion | None = None, *curations: Curation, start: int | None = None
) -> NewVersion:
    """The version of a window that moves on with its number."""
    first = STEP * (number - 1) if start is None else start
    part = slice(first, first + SIZE)
    last = None if before is None else LastVersion(before.clusters, before.outside, before.neighbours, before.found)
    return recluster(Window(number, sample.vectors()[part], sample.texts()[part], IDS[part], last, curations))


@pytest.fixture(scope="module")
def first() -> NewVersion:
    """A version without curations."""
    return version(1)


def by_id(made: NewVersion) -> dict[str, Cluster]:
    """Its clusters."""
    return {one.cluster_id: one for one in made.clusters}


def members(made: NewVersion) -> dict[str, set[str]]:
    """The members of each cluster."""
    return {one.cluster_id: set(one.insight_ids) for one in made.clusters}


def vector_of(insight_id: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The vector of an insight."""
    return sample.vectors()[IDS.index(insight_id)]


def uncopied(one: Cluster) -> tuple[str, ...]:
    """The insights of a cluster whose vectors are their own."""
    vectors = {insight_id: sample.vectors()[IDS.index(insight_id)].tobytes() for insight_id in one.insight_ids}
    return tuple(i for i, vector in vectors.items() if list(vectors.values()).count(vector) == 1)


def kinds(made: NewVersion, cluster_id: str) -> set[str]:
    """The changes of a cluster."""
    return {one.kind.value for one in made.changes if one.cluster_id == cluster_id}


def test_a_name_stays_with_its_cluster(first: NewVersion):
    """The reader's label and title outlive windows that move on, and go when they are retracted; members are as without it."""
    cluster_id = first.clusters[1].cluster_id
    named = rename(cluster_id, "My own")
    second = version(2, first, named)
    plain = version(2, first)
    third = version(3, second, named)
    for made in (second, third):
        one = by_id(made)[cluster_id]
        assert (one.label, one.title, one.label_by) == ("My own", "My own", "reader")
        assert all(not other.label_by for other in made.clusters if other is not one)
    assert members(second) == members(plain)
    assert second.found is None
    after = by_id(version(4, third))[cluster_id]
    assert after.label_by == ""
    assert after.label != "My own"


def test_a_theme_of_one_cluster_is_called_as_the_cluster(first: NewVersion):
    """If it is alone; a theme that it shares keeps its name."""
    for cluster_id, one in by_id(first).items():
        alone = sum(other.theme == one.theme for other in first.clusters) == 1
        made = by_id(version(1, None, rename(cluster_id, "My own")))[cluster_id]
        assert made.theme == ("My own" if alone else one.theme)


def test_what_is_merged_stays_merged(first: NewVersion):
    """Later arrivals of either go to the merged one; the merge and its undo are reported, and the undo restores both ids."""
    into, other = (first.clusters[place].cluster_id for place in (2, 3))  # neither splits by itself in these windows
    merged = merge(into, other)
    second = version(2, first, merged)
    natural = members(version(2, first))
    assert members(second)[into] == natural[into] | natural[other]
    assert other not in members(second)
    assert "merged" in kinds(second, into)
    assert "died" in kinds(second, other)
    third = version(3, second, merged)
    natural = members(version(3, version(2, first)))
    assert members(third)[into] == natural[into] | natural[other]
    assert len(members(third)[into] - members(second)[into]) > 0
    assert kinds(third, into) <= {"grew", "shrank"}
    apart = version(4, third)
    assert {into, other} <= set(members(apart))
    assert {"born"} == kinds(apart, other)
    assert "split" in kinds(apart, into)
    assert apart.found is None


def test_what_is_split_stays_split(first: NewVersion):
    """Parts and rest keep their ids and their members; a new insight goes to the nearer one, so to the one that it resembles."""
    big = first.clusters[1]
    anchor = np.array([IDS.index(one) for one in big.insight_ids])
    closeness = sample.vectors()[anchor] @ sample.vectors()[anchor[-1]]
    named = tuple(big.insight_ids[place] for place in np.argsort(-closeness)[: big.size // 3])
    parted = split(big.cluster_id, named, label="The third")
    (part_id,) = parted.part_ids
    second = version(2, first, parted)
    whole = members(version(2, first))[big.cluster_id]
    now = members(second)
    assert now[part_id] | now[big.cluster_id] == whole
    assert now[part_id] & set(big.insight_ids) == set(named) & whole
    assert by_id(second)[part_id].label == "The third"
    assert kinds(second, part_id) == {"born"}
    third = version(3, second, parted)
    then = members(third)
    assert then[part_id] | then[big.cluster_id] == members(version(3, version(2, first)))[big.cluster_id]
    assert now[part_id] & set(IDS[2 * STEP :]) == then[part_id] & now[part_id]
    assert not now[big.cluster_id] & then[part_id]
    together = version(4, third)
    assert part_id not in members(together)
    assert "died" in kinds(together, part_id)


def test_who_is_new_goes_to_the_nearer_side(first: NewVersion):
    """The side is chosen by the cosine to the centre of the members that have one, each vector once."""
    one, other = first.clusters[:2]
    merged = merge(one.cluster_id, other.cluster_id, at=1)
    parted = split(one.cluster_id, other.insight_ids, at=2)
    made = members(version(2, first, merged, parted, start=24))
    window = set(IDS[24 : 24 + SIZE])
    sides = {one.cluster_id: set(one.insight_ids) & window, parted.part_ids[0]: set(other.insight_ids) & window}
    known = {side: {tuple(vector_of(i)) for i in ids} for side, ids in sides.items()}
    centres = {side: np.sum(sorted(vectors), axis=0) for side, vectors in known.items()}
    new = [
        (i, side)
        for side in sides
        for i in made[side] - sides[side]
        if tuple(vector_of(i)) not in set().union(*known.values())
    ]
    assert new
    for insight_id, side in new:
        closeness = {key: vector_of(insight_id) @ centre / np.linalg.norm(centre) for key, centre in centres.items()}
        assert closeness[side] >= max(closeness.values()) - 1e-3


def test_a_part_can_be_merged_and_split_again(first: NewVersion):
    """A later curation finds the clusters of an earlier one; without the earlier one it rests."""
    big, other = first.clusters[0], first.clusters[1].cluster_id
    named = uncopied(big)[:6]
    one = split(big.cluster_id, named, at=1)
    (part_id,) = one.part_ids
    two = split(part_id, named[:3], at=2)
    three = merge(other, part_id, at=3)
    made = version(2, first, one, two, three, start=0)
    assert members(made)[two.part_ids[0]] == set(named[:3])
    assert members(made)[big.cluster_id] == set(big.insight_ids) - set(named)
    assert members(made)[other] == set(first.clusters[1].insight_ids) | set(named[3:])
    assert part_id not in members(made)
    assert members(version(2, first, two, three)) == members(version(2, first))


def test_copies_stay_together(first: NewVersion):
    """Texts that are alike are one point of the map: a part that names one of them has them all."""
    big = next(one for one in first.clusters if len(uncopied(one)) < one.size)
    copy = next(insight_id for insight_id in big.insight_ids if insight_id not in uncopied(big))
    vector = sample.vectors()[IDS.index(copy)]
    alike = {i for i in big.insight_ids if np.array_equal(sample.vectors()[IDS.index(i)], vector)}
    parted = split(big.cluster_id, (copy,))
    assert members(version(2, first, parted, start=0))[parted.part_ids[0]] == alike


def test_the_order_is_that_of_the_log(first: NewVersion):
    """A merge before a split and after it are two things, however they are given."""
    into, other = first.clusters[0], first.clusters[1]
    parts = [split(into.cluster_id, into.insight_ids[-5:], at=at) for at in (1, 3)]
    merged = merge(other.cluster_id, into.cluster_id, at=2)
    early, late = version(2, first, parts[0], merged), version(2, first, merged, parts[1])
    assert members(early) != members(late)
    assert version(2, first, merged, parts[0]) == early


def test_a_curation_of_what_is_gone_rests(first: NewVersion):
    """A cluster that left the window takes its name and its merges out of effect; nothing fails, nothing changes."""
    gone = [rename("nobody", "x"), merge("nobody", "neither"), split("nobody", ("i",))]
    assert version(2, first, *gone) == version(2, first)
    assert all(one.is_resting(by_id(first)) for one in gone)
    assert not rename(first.clusters[0].cluster_id, "x").is_resting(by_id(first))


def test_a_merge_outlives_the_cluster_that_took_the_others_in(first: NewVersion):
    """While one of them is left, it stands under the id that the reader knows."""
    into, other = first.clusters[0].cluster_id, first.clusters[1].cluster_id
    made = version(1, None, merge("left-long-ago", into, other))
    assert "left-long-ago" in members(made)
    assert not {into, other} & set(members(made))


IDS_OF_CLUSTERS = st.integers(0, 5)


@st.composite
def said(draw: st.DrawFn) -> list[tuple[str, int, list[int], list[list[int]]]]:
    """Kinds with numbers of clusters and of insights of these."""
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["rename", "merge", "split"]))
        cluster = draw(IDS_OF_CLUSTERS)
        others = draw(st.lists(IDS_OF_CLUSTERS, min_size=1, max_size=3, unique=True))
        numbers = draw(st.lists(st.integers(0, 60), min_size=1, max_size=9, unique=True))
        cut = draw(st.integers(0, len(numbers) - 1))
        parts = [part for part in (numbers[:cut], numbers[cut:]) if part]
        steps.append((kind, cluster, others, parts))
    return steps


def curations_of(steps: list[tuple[str, int, list[int], list[list[int]]]], made: NewVersion) -> list[Curation]:
    """Curations of the clusters of a version, and of the parts that were split off before."""
    ids = [one.cluster_id for one in made.clusters]
    insights = [insight_id for one in made.clusters for insight_id in one.insight_ids]
    told: list[Curation] = []
    for at, (kind, cluster, others, parts) in enumerate(steps):
        if kind == "rename":
            told.append(rename(ids[cluster % len(ids)], f"name {at}", at))
        elif kind == "merge":
            known = dict.fromkeys(ids[other % len(ids)] for other in others if other % len(ids) != cluster % len(ids))
            if known:
                told.append(merge(ids[cluster % len(ids)], *known, at=at))
        else:
            named = dict.fromkeys(insights[n] for part in parts for n in part if n < len(insights))
            told.append(split(ids[cluster % len(ids)], tuple(named), at=at))
            ids += told[-1].part_ids
    return told


@given(said())
@settings(max_examples=15, deadline=None)
def test_curations_lose_nobody_and_count_once(steps: list[tuple[str, int, list[int], list[list[int]]]]):
    """For any curations: each insight is in one cluster or outside as before, order and repeats do not matter, and a version that
    follows itself is unchanged.
    """
    first = version(1, start=0)
    told = curations_of(steps, first)
    made = version(2, first, *told, start=0)
    inside = [insight_id for one in made.clusters for insight_id in one.insight_ids]
    assert sorted(inside) == sorted(insight_id for one in first.clusters for insight_id in one.insight_ids)
    assert made.outside.insight_ids == first.outside.insight_ids
    assert len(by_id(made)) == len(made.clusters)
    assert version(2, first, *reversed(told), *told, start=0) == made
    again = version(3, made, *told, start=0)
    assert members(again) == members(made)
    assert again.changes == ()
    assert [one.label for one in again.clusters if one.label_by] == [one.label for one in made.clusters if one.label_by]


def test_a_later_name_replaces_the_one_before():
    """Also in one batch, and an earlier one that comes later does not."""
    one, two = rename("a", "one", 1), rename("a", "two", 2)
    assert one.curation_id == two.curation_id
    assert fold_curations({}, [two, one]).curations == {two.curation_id: two}
    assert fold_curations({two.curation_id: two}, [one]).curations == {two.curation_id: two}


def test_a_repeat_changes_nothing_and_keeps_its_place():
    """A repeated merge or split keeps the place of the first one, in any order of its ids."""
    for one, again in (
        (merge("a", "b", "c", at=1), merge("a", "c", "b", at=9)),
        (split("a", ("i", "j"), at=1), split("a", ("j", "i"), at=9, label="named")),
    ):
        assert fold_curations({}, [one, again]).curations == {one.curation_id: one}
    assert merge("a", "b").curation_id != merge("b", "a").curation_id
    assert split("a", ("i", "j")).curation_id != split("a", ("i",), ("j",)).curation_id


def test_an_undo_takes_away_and_it_can_be_said_again():
    """An undo of a missing curation changes nothing."""
    one = merge("a", "b", at=1)
    assert fold_curations({}, [one, undo(one, 2)]).curations == {}
    assert fold_curations({}, [undo(one, 2)]).curations == {}
    again = replace(one, order=(3, 0, 3))
    assert fold_curations({}, [one, undo(one, 2), again]).curations == {one.curation_id: again}


def test_no_more_are_held_than_a_reader_looks_through():
    """Further ones are refused; a name for a cluster that has one still replaces it."""
    held = fold_curations({}, [rename(f"c{n}", "x", n) for n in range(CURATIONS_MAX)]).curations
    more = fold_curations(held, [rename("another", "x", 500), rename("c7", "y", 501)])
    assert [one.cluster_id for one in more.refused] == ["another"]
    assert len(more.curations) == CURATIONS_MAX
    assert "y" in {one.label for one in more.curations.values()}


def test_a_reader_has_one_wish():
    """The last one, in any order of arrival; it rests in no version, and groups nothing."""
    first, second = wish("by product", 1), wish("by team", 2)
    for order in ([first, second], [second, first]):
        held = fold_curations({}, order).curations
        assert list(held.values()) == [second]
        assert wish_of(held.values()) == second
    assert not second.is_resting([])
    assert wish_of(fold_curations(held, [undo(second, 3)]).curations.values()) is None


def test_a_curation_is_read_back_as_it_was_stored():
    """Through its stored form."""
    for one in (rename("a", "x"), merge("a", "b"), split("a", ("i",), ("j",), label="y"), wish("x")):
        assert curation_from(curation_json(one), one.curation_id, one.order) == one


@pytest.mark.parametrize(
    ("wrong", "field", "reason"),
    [
        (event("forget", cluster_id="a"), "kind", "unknown_kind"),
        (event("rename", label="x"), "cluster_id", "empty_id"),
        (event("rename", cluster_id="a"), "label", "empty_id"),
        (event("rename", cluster_id="a", label=" "), "label", "empty_id"),
        (event("rename", cluster_id="a", label="\u200b"), "label", "empty_text"),
        (event("rename", cluster_id="a", label="a\nb"), "label", "control_character"),
        (event("rename", cluster_id="a", label="x" * (LABEL_BYTES_MAX + 1)), "label", "too_long"),
        (event("rename", cluster_id="a", label="x", curation_id="y"), "curation_id", "not_an_undo"),
        (event("merge", cluster_id="a"), "cluster_ids", "empty"),
        (event("merge", cluster_id="a", cluster_ids=["b", "a"]), "cluster_ids", "with_itself"),
        (event("merge", cluster_id="a", cluster_ids=["b", "b"]), "cluster_ids", "twice"),
        (
            event("merge", cluster_id="a", cluster_ids=[f"{n}" for n in range(MERGED_MAX + 1)]),
            "cluster_ids",
            "too_many",
        ),
        (event("split", cluster_id="a"), "parts", "empty"),
        (event("split", cluster_id="a", parts=[{"insight_ids": [], "label": None}]), "parts", "empty"),
        (event("split", cluster_id="a", parts=[{"insight_ids": ["i"], "label": ""}]), "parts", "empty_id"),
        (event("split", cluster_id="a", parts=[{"insight_ids": ["i", "i"], "label": None}]), "parts", "twice"),
        (
            event(
                "split", cluster_id="a", parts=[{"insight_ids": [f"{n}"], "label": None} for n in range(PARTS_MAX + 1)]
            ),
            "parts",
            "too_many",
        ),
        (
            event(
                "split", cluster_id="a", parts=[{"insight_ids": [f"{n}" for n in range(NAMED_MAX + 1)], "label": None}]
            ),
            "parts",
            "too_many",
        ),
        (event("undo"), "curation_id", "empty_id"),
        (event("wish", label="x", cluster_id="a"), "cluster_id", "of_a_cluster"),
        (event("wish"), "label", "empty_id"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: ClustersCurated, field: str, reason: str):
    """With the field at fault, whichever way it was sent."""
    with pytest.raises(InvalidEventError) as raised:
        check_curated(wrong)
    assert (raised.value.field, raised.value.reason) == (field, reason)


def test_what_makes_sense_is_taken():
    """One of each kind."""
    part = ClusterPart(insight_ids=["i"], label=None)
    for right in (
        event("rename", cluster_id="a", label="x" * LABEL_BYTES_MAX),
        event("merge", cluster_id="a", cluster_ids=["b"]),
        event("split", cluster_id="a", parts=[part]),
        event("undo", curation_id="x"),
        event("wish", label="by product"),
    ):
        check_curated(right)
        assert curation_of(right, (1, 0, 0)).kind is CurationKind(right["kind"])
