"""Titles of clusters: which clusters keep one, which need one, and the input of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.connectors.feeds.titles import CLUSTERS_ASKED_MAX, ClusterTitles, keep_titles, telling_texts
from highwater.connectors.models.chat import ModelError
from highwater.schemas.feeds import ClustersCurated
from highwater.streams.feeds.curations import Curation, curation_of
from highwater.streams.feeds.versions import Cluster, LastVersion, NewVersion, Outside

NUMBER = 10


def _cluster(cluster_id: str, since: tuple[int, ...], *, written: int = 0, title: str = "label") -> Cluster:
    ids = tuple(f"{cluster_id}-{place}" for place in range(len(since)))
    return Cluster(
        cluster_id=cluster_id,
        label="label",
        title=title,
        keywords=("k" * 5_000,),
        summary=f"summary of {title}",
        size=len(since),
        representative_id=ids[0],
        insight_ids=ids,
        confidences=(0.5,) * len(ids),
        since=since,
        positions=((0.0, 0.0),) * len(ids),
        position=(0.0, 0.0),
        radius=1.0,
        arrived=since,
        born_version=min(since),
        changed_version=max(since),
        nearby_ids=(),
        nearby_confidences=(),
        written_version=written,
    )


def _version(*clusters: Cluster) -> NewVersion:
    return NewVersion(clusters, Outside(), (), b"")


class _Model:
    """Gives a good answer, or the given one; records its input."""

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        self.asked: list[list[dict[str, Any]]] = []
        self.themes: list[list[str]] = []
        self.wishes: list[str | None] = []
        self.name = "Texts about labels"
        self.answer = answer

    async def object_for(self, _system: str, user: str) -> dict[str, Any]:
        question = orjson.loads(user)
        self.asked.append(question["clusters"])
        self.themes.append([one["theme"] for one in question.get("themes", ())])
        self.wishes.append(question.get("wish"))
        if self.answer is not None:
            return self.answer
        items = [{"cluster_id": c["cluster_id"], "title": "Labels of texts", "summary": "s"} for c in self.asked[-1]]
        return {"items": items, "themes": [{"theme": theme, "name": self.name} for theme in self.themes[-1]]}


def _texts(*clusters: Cluster) -> dict[str, str | None]:
    return {insight_id: f"text of {insight_id}" for one in clusters for insight_id in one.insight_ids}


@given(st.lists(st.integers(1, NUMBER), min_size=1, max_size=9), st.integers(0, NUMBER - 1))
def test_a_title_is_kept_by_half_of_the_members(since: list[int], written: int) -> None:
    """Kept with its summary and version exactly when one was written and half of the members were there then."""
    before, now = _cluster("a", (1,), written=written, title="said"), _cluster("a", tuple(since))
    (found,) = keep_titles(_version(now), LastVersion((before,), Outside())).clusters
    is_kept = written > 0 and sum(one <= written for one in since) / len(since) >= 0.5
    kept = replace(now, title="said", summary="summary of said", written_version=written)
    assert found == (kept if is_kept else now)


def test_another_cluster_takes_no_title() -> None:
    """A title stays with its cluster id; without a last version there is none."""
    now = _version(_cluster("b", (1, 1)))
    last = LastVersion((_cluster("a", (1, 1), written=3, title="said"),), Outside())
    assert keep_titles(now, last) == now == keep_titles(now, None)


async def test_the_largest_are_asked_about_in_one_call() -> None:
    """At most N, the largest of those without a title; the rest keep the built-in one and need no call."""
    clusters = [_cluster(f"c{n:02}", (NUMBER,) * (50 - n)) for n in range(40)]
    last = LastVersion((_cluster("c00", (1,), written=NUMBER, title="said"),), Outside())
    model = _Model()
    found = await ClusterTitles(model).titled(_version(*clusters), NUMBER, last, _texts(*clusters))  # type: ignore[arg-type]
    (asked,) = model.asked
    assert [one["cluster_id"] for one in asked] == [f"c{n:02}" for n in range(1, 1 + CLUSTERS_ASKED_MAX)]
    titles = [(one.title, one.written_version) for one in found.clusters]
    assert titles == [("said", NUMBER), *[("Labels of texts", NUMBER)] * 30, *[("label", 0)] * 9]


async def test_a_title_that_no_text_founds_is_not_shown() -> None:
    """The built-in one stays, with its summary, and the cluster is not asked about again."""
    clusters = [_cluster("a", (NUMBER,)), _cluster("b", (NUMBER,))]
    said = {"a": "Labels in the wide blue cloud", "b": "The labels"}
    model = _Model({"items": [{"cluster_id": c, "title": title, "summary": "s"} for c, title in said.items()]})
    found = await ClusterTitles(model).titled(_version(*clusters), NUMBER, None, _texts(*clusters))  # type: ignore[arg-type]
    told = [(one.title, one.summary, one.written_version) for one in found.clusters]
    assert told == [("label", "summary of label", NUMBER), ("The labels", "s", NUMBER)]
    last = LastVersion(found.clusters, Outside())
    await ClusterTitles(model).titled(_version(*clusters), NUMBER + 1, last, _texts(*clusters))  # type: ignore[arg-type]
    assert len(model.asked) == 1


async def test_what_a_model_is_told_is_bounded() -> None:
    """With texts and words of any length a call stays below 70,000 characters; meaningless texts are not sent."""
    clusters = [_cluster(f"c{n}", (NUMBER,) * 9) for n in range(40)]
    texts: dict[str, str | None] = dict.fromkeys(_texts(*clusters), "x" * 100_000)
    model = _Model()
    await ClusterTitles(model).titled(_version(*clusters), NUMBER, None, texts)  # type: ignore[arg-type]
    assert len(orjson.dumps(model.asked[0])) < 70_000
    assert [len(one["texts"]) for one in model.asked[0]] == [1] * 30  # ten thousand identical texts are one
    await ClusterTitles(model).titled(_version(*clusters), NUMBER, None, dict.fromkeys(texts, " "))  # type: ignore[arg-type]
    assert len(model.asked) == 1


def test_the_surest_members_speak() -> None:
    """First the representative, then by confidence; the same text once."""
    one = replace(_cluster("a", (1,) * 4), representative_id="a-2", confidences=(0.4, 0.9, 0.5, 0.8))
    assert telling_texts(one, {"a-0": "low", "a-1": "high", "a-2": "it", "a-3": "high "}) == ("it", "high", "low")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"items": [{"cluster_id": "a", "title": "t", "summary": "s"}]},
        {"items": [{"cluster_id": c, "title": "t", "summary": "s" * 501} for c in "ab"]},
        {"items": [{"cluster_id": c, "title": "t", "summary": "s"} for c in "abc"]},
    ],
)
async def test_an_answer_counts_as_a_whole(answer: dict[str, Any]) -> None:
    """An answer that omits a cluster, is too long or names others changes nothing, and causes no error."""
    version = _version(_cluster("a", (NUMBER,)), _cluster("b", (NUMBER,)))
    model = _Model(answer)
    assert await ClusterTitles(model).titled(version, NUMBER, None, _texts(*version.clusters)) == version  # type: ignore[arg-type]
    assert len(model.asked) == 1


async def test_a_model_that_fails_takes_no_kept_title_away() -> None:
    """If the call fails, kept titles stay and the rest is built in."""

    class Broken(_Model):
        async def object_for(self, _system: str, _user: str) -> dict[str, Any]:
            raise ModelError("silence")

    version = _version(_cluster("a", (1, 1)), _cluster("b", (NUMBER,)))
    last = LastVersion((_cluster("a", (1, 1), written=3, title="said"),), Outside())
    found = await ClusterTitles(Broken()).titled(version, NUMBER, last, _texts(*version.clusters))  # type: ignore[arg-type]
    assert [(one.title, one.written_version) for one in found.clusters] == [("said", 3), ("label", 0)]


async def test_without_a_model_a_version_is_as_it_was_made() -> None:
    """No model, no change; not even a title that was kept."""
    version = _version(_cluster("a", (1, 1)))
    last = LastVersion((_cluster("a", (1, 1), written=3, title="said"),), Outside())
    assert await ClusterTitles(None).titled(version, NUMBER, last, {}) is version


def _in_themes(number: int, *themes: str) -> NewVersion:
    """Two clusters of three insights for each theme."""
    clusters = [
        replace(_cluster(f"{theme}-{n}", (number,) * 3), theme=theme, label=f"{theme} {n}")
        for theme in themes
        for n in range(2)
    ]
    return _version(*clusters)


def _wish(words: str, at: int) -> Curation:
    return curation_of(
        ClustersCurated(
            user_id="u", ts=0, kind="wish", cluster_id="", label=words, cluster_ids=[], parts=[], curation_id=None
        ),
        (at, 0, at),
    )


async def test_themes_are_named_once_beside_the_titles() -> None:
    """In the same call; what is left over keeps its name; the next version with the same insights pays nothing."""
    version = _in_themes(NUMBER, "label", "Other")
    model = _Model()
    first = await ClusterTitles(model).titled(version, NUMBER, None, _texts(*version.clusters))  # type: ignore[arg-type]
    assert model.themes == [["label"]]
    assert [(one.theme, one.theme_for) for one in first.clusters] == [("Texts about labels", "")] * 2 + [
        ("Other", None)
    ] * 2
    last = LastVersion(first.clusters, Outside())
    second = await ClusterTitles(model).titled(version, NUMBER + 1, last, _texts(*version.clusters))  # type: ignore[arg-type]
    assert second.clusters == first.clusters
    assert len(model.asked) == 1


@pytest.mark.parametrize("name", ["Wide blue clouds", "", "label", 7, "text " * 30])
async def test_a_theme_without_a_founded_name_keeps_its_own(name: Any) -> None:
    """Also if the name is that of another theme; it counts as paid."""
    version = _in_themes(NUMBER, "first text", "label")
    model = _Model()
    model.name = name
    found = await ClusterTitles(model).titled(version, NUMBER, None, _texts(*version.clusters))  # type: ignore[arg-type]
    assert [one.theme for one in found.clusters] == [one.theme for one in version.clusters]
    last = LastVersion(found.clusters, Outside())
    await ClusterTitles(model).titled(version, NUMBER + 1, last, _texts(*version.clusters))  # type: ignore[arg-type]
    assert len(model.asked) == 1


async def test_a_theme_of_one_cluster_has_its_title() -> None:
    """No call asks about it, and a title that comes later is its name from then on."""
    version = _version(replace(_cluster("a", (NUMBER,) * 3), theme="label"))
    model = _Model()
    found = await ClusterTitles(model).titled(version, NUMBER, None, _texts(*version.clusters))  # type: ignore[arg-type]
    assert model.themes == [[]]
    assert [(one.title, one.theme) for one in found.clusters] == [("Labels of texts", "Labels of texts")]


async def test_another_wish_needs_other_names() -> None:
    """The model reads the last wish, all names are written for it, and they stay until the next wish, or until it is undone."""
    version = _in_themes(NUMBER, "label")
    texts = _texts(*version.clusters)
    model = _Model()
    titles = ClusterTitles(model)  # type: ignore[arg-type]
    made, wishes = (
        version,
        [None, _wish("group by product", 1), _wish("group by product", 1), _wish("by team", 2), None],
    )
    for number, wish in enumerate(wishes, NUMBER):
        made = await titles.titled(version, number, LastVersion(made.clusters, Outside()), texts, wish)
    assert model.wishes == [None, "group by product", "by team", None]
    assert model.themes == [["label"]] * 4
    assert [len(asked) for asked in model.asked] == [2] * 4
    assert {(one.written_for, one.theme_for) for one in made.clusters} == {("", "")}


async def test_names_for_an_earlier_wish_stay_while_the_model_is_away() -> None:
    """They are requested again with the next version."""
    version = _in_themes(NUMBER, "label")
    texts = _texts(*version.clusters)
    model = _Model()
    first = await ClusterTitles(model).titled(version, NUMBER, None, texts)  # type: ignore[arg-type]
    model.answer = {}
    last = LastVersion(first.clusters, Outside())
    wish = _wish("by team", 1)
    second = await ClusterTitles(model).titled(version, NUMBER + 1, last, texts, wish)  # type: ignore[arg-type]
    assert second.clusters == first.clusters
    model.answer = None
    third = await ClusterTitles(model).titled(version, NUMBER + 2, last, texts, wish)  # type: ignore[arg-type]
    assert {one.theme_for for one in third.clusters} == {"feeds.clusters-curated/0/1"}


async def test_where_no_title_is_founded_the_label_of_the_version_stands() -> None:
    """The built-in title is that of the present texts, and it is paid: nothing is asked about it."""
    model = _Model({"items": [{"cluster_id": "a", "title": "Wide blue clouds", "summary": "s"}]})
    version = _version(_cluster("a", (NUMBER,) * 3))
    first = await ClusterTitles(model).titled(version, NUMBER, None, _texts(*version.clusters))  # type: ignore[arg-type]
    now = _version(replace(version.clusters[0], label="later label", title="later label", summary="later"))
    last = LastVersion(first.clusters, Outside())
    second = await ClusterTitles(model).titled(now, NUMBER + 1, last, _texts(*version.clusters))  # type: ignore[arg-type]
    assert [(one.title, one.summary, one.written_version) for one in second.clusters] == [
        ("later label", "later", NUMBER)
    ]
    assert len(model.asked) == 1
