"""Curations of clusters on real services: stored in the order of the log, in the next version, until they are undone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from highwater.connectors.feeds.pool import ClusterPool
from highwater.connectors.identity.sink_users import UsersSink
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.records import Event
from highwater.connectors.postgres.pool import open_pool
from highwater.connectors.redis.link import RedisLink
from highwater.connectors.slices import ERASURE
from highwater.schemas.feeds import CLUSTERS_CURATED, CLUSTERS_REBUILT, USER_CHANGED, USER_ERASED
from highwater.streams.feeds.curations import CURATIONS_MAX
from tests.conftest import Stack
from tests.integration.api_server import Seeds, cluster
from tests.integration.connecting import event, in_transaction
from tests.integration.feeds.making import NOW_MS, Case, store_curation


class Reader(Case):
    """A user who curates clusters."""

    said: int = 0

    def says(self, kind: str, **value: Any) -> Event:
        """The reader's next event."""
        self.said += 1
        whole = {"cluster_id": "", "label": None, "cluster_ids": [], "parts": [], "curation_id": None, **value}
        at = NOW_MS + self.said
        return event(
            CLUSTERS_CURATED, {"user_id": self.user, "ts": 1, "kind": kind, **whole}, offset=self.said, arrived_ms=at
        )

    async def stores(self, *events: Event) -> Any:
        """One batch through the sink of users."""
        sink = UsersSink(self.context.codec, self.context.clock, ERASURE, dimensions=384)
        return await in_transaction(self.context, sink, events)

    async def held(self) -> list[tuple[str, int]]:
        """Labels of the stored curations, and offsets, in the order of the log."""
        query = (
            "SELECT curation->>'label', source_offset FROM cluster_curations WHERE user_id = $1 ORDER BY source_offset"
        )
        return [tuple(row) for row in await self.context.pool.fetch(query, self.user)]

    async def clusters(self) -> dict[str, dict[str, Any]]:
        """Those of the newest version, by id."""
        query = "SELECT clusters FROM user_clusters WHERE user_id = $1 ORDER BY cluster_version DESC LIMIT 1"
        return {one["cluster_id"]: one for one in json.loads(await self.sql(query, self.user) or "[]")}

    async def rebuilt(self) -> dict[str, Any]:
        """The clusters of a rebuild requested by a curation: only if it changes something."""
        answer = await self.rebuild(forced=False)
        assert (answer["outcome"], answer["reason"]) == ("rebuilt", "")
        return await self.clusters()


@pytest.fixture
async def reader(stack: Stack, shared: tuple[ProcessContext, RedisLink, ClusterPool]) -> Reader:
    """A reader with two clusters."""
    made = Reader(stack, *shared)
    await made.user_is()
    await made.insights(60)
    await made.rebuild()
    return made


async def test_what_a_reader_says_outlives_rebuilds_until_it_is_undone(reader: Reader):
    """A name and a merge are in the next version and in those after new insights, which name the events that they were made with;
    undone, both clusters are back under their ids and the labels are the product's.
    """
    first = await reader.clusters()
    one, other = first
    named, merged = (
        reader.says("rename", cluster_id=one, label="Mine"),
        reader.says("merge", cluster_id=one, cluster_ids=[other]),
    )
    assert await reader.stores(named, merged) == []
    told = (await reader.answers(USER_CHANGED))[-1]
    assert (told["rebuild_demanded"], told["rebuild_forced"]) == (True, False)
    for more in (0, 6, 6):
        if more:
            await reader.insights(more)
        (whole,) = (await reader.rebuilt()).values()
        assert (whole["cluster_id"], whole["label"], whole["title"], whole["label_by"]) == (
            one,
            "Mine",
            "Mine",
            "reader",
        )
        assert whole["size"] == await reader.sql(
            "SELECT current_seq FROM channels WHERE channel_id = $1", reader.channel
        )
        event_of_version = (await reader.answers(CLUSTERS_REBUILT))[-1]
        assert event_of_version["curations"] == [str(named.record.position), str(merged.record.position)]
    assert (await reader.rebuild(forced=False))["reason"] == "nothing_new"
    for curation_id in [row["curation_id"] for row in await reader.context.pool.fetch(
        "SELECT curation_id FROM cluster_curations WHERE user_id = $1", reader.user)]:  # fmt: skip
        await reader.stores(reader.says("undo", curation_id=curation_id))
    last = await reader.rebuilt()
    assert {one: last[one]["label"], other: last[other]["label"]} == {
        one: first[one]["label"],
        other: first[other]["label"],
    }
    assert {one["label_by"] for one in last.values()} == {""}
    assert (await reader.answers(CLUSTERS_REBUILT))[-1]["curations"] == []


async def test_a_split_is_kept_where_new_insights_go(reader: Reader):
    """Of a merged cluster: the part has its own id, both sides continue, and a new insight goes to the more similar side."""
    first = await reader.clusters()
    one, other = first
    await reader.stores(reader.says("merge", cluster_id=one, cluster_ids=[other]))
    await reader.rebuilt()
    parts = [{"insight_ids": first[other]["insight_ids"][:3], "label": "Part"}]
    await reader.stores(reader.says("split", cluster_id=one, parts=parts))
    split = await reader.rebuilt()
    (part,) = (key for key, cluster in split.items() if cluster["label"] == "Part")
    # Copies of those that were named go with them.
    assert {key: set(cluster["insight_ids"]) for key, cluster in split.items()} == {
        one: set(first[one]["insight_ids"]), part: set(first[other]["insight_ids"])
    }  # fmt: skip
    await reader.insights(10)
    later = await reader.rebuilt()
    assert {key: cluster["size"] for key, cluster in later.items()} == {one: 35, part: 35}
    assert later[part]["since"] == [3] * 30 + [4] * 5


async def test_an_event_that_comes_again_changes_nothing(reader: Reader):
    """In the same batch, in the next, and an older one after a newer; nothing is rebuilt for it."""
    one, other = await reader.clusters()
    first, second = (
        reader.says("rename", cluster_id=one, label="first"),
        reader.says("rename", cluster_id=one, label="second"),
    )
    merged = reader.says("merge", cluster_id=one, cluster_ids=[other])
    await reader.stores(first, second, second, merged)
    await reader.stores(first, merged)
    assert await reader.held() == [("second", 2), ("", 3)]
    await reader.rebuilt()
    await reader.stores(second, merged)
    assert (await reader.rebuild(forced=False))["reason"] == "nothing_new"


async def test_an_undo_of_a_curation_that_rests_makes_no_version(reader: Reader):
    """A curation without a visible change keeps the version, and is requested once."""
    await reader.stores(reader.says("rename", cluster_id="gone", label="x"))
    assert (await reader.rebuild(forced=False))["reason"] == "unchanged"
    assert (await reader.rebuild(forced=False))["reason"] == "nothing_new"
    assert (await reader.state())[0] == 1


async def test_an_erasure_voids_what_was_said_before_it(reader: Reader):
    """In the batch of the erasure too; a curation without a user is skipped."""
    one, _ = await reader.clusters()
    said = reader.says("rename", cluster_id=one, label="x")
    erased = event(USER_ERASED, {"user_id": reader.user, "ts": 1}, arrived_ms=NOW_MS + 50)
    await reader.stores(said, erased)
    assert await reader.held() == []
    await reader.stores(reader.says("rename", cluster_id=one, label="x"))
    assert await reader.held() == []


async def test_no_more_than_a_hundred_are_held(reader: Reader):
    """The sink keeps the first hundred; a nonsense one goes to the dead letters."""
    many = [reader.says("rename", cluster_id=f"c{n}", label="x") for n in range(CURATIONS_MAX + 2)]
    dead = await reader.stores(*many, reader.says("rename", cluster_id="c", label=" "))
    assert [letter.reason for letter in dead] == ["empty_id"]
    assert [offset for _, offset in await reader.held()] == list(range(1, CURATIONS_MAX + 1))


# -- over HTTP --------------------------------------------------------------------------------------------------------------

PATH = "/api/users/cura/clusters/a"


@pytest.fixture(scope="module")
async def seen(seeds: Seeds) -> list[str]:
    """A user who sees two clusters, a and b, of four insights and of two; their ids."""
    ids = await seeds.channel("cu1", 6)
    await seeds.rebuild("cura", [cluster("a", ids[:4]), cluster("b", ids[4:])])
    return ids


async def sink_takes(stack: Stack, context: ProcessContext, seeds: Seeds, answer: httpx2.Response) -> None:
    """The sink of users stores the accepted events."""
    (position,) = answer.json()["positions"]
    async with await open_pool(seeds.url) as pool:
        await store_curation(stack, replace(context, pool=pool), position)
    await seeds.account_for(position)


async def test_what_is_said_is_listed_until_it_is_undone(http, stack, context, seeds: Seeds, seen: list[str]) -> None:
    """Each is an event of its user, `Location` names what retracts it, and the list says which are in effect."""
    answers = [
        await http.put(f"{PATH}/label", json={"label": "Mine"}),
        await http.post(f"{PATH}/merge", json={"cluster_ids": ["b"]}),
        await http.post(f"{PATH}/split", json={"parts": [{"insight_ids": seen[:1], "label": "One"}]}),
    ]
    for answer in answers:
        assert answer.status_code == 202, answer.text
        await sink_takes(stack, context, seeds, answer)
    listed = (await http.get("/api/users/cura/curations")).json()["curations"]
    assert [(one["kind"], one["label"], one["is_resting"]) for one in listed] == [
        ("rename", "Mine", False), ("merge", "", False), ("split", "", True)
    ]  # fmt: skip
    assert [one["position"] for one in listed] == [answer.json()["positions"][0] for answer in answers]
    assert [answer.headers["location"].rsplit("/", 1)[1] for answer in answers] == [
        one["curation_id"] for one in listed
    ]
    undone = await http.delete(answers[1].headers["location"])
    await sink_takes(stack, context, seeds, undone)
    assert [one["kind"] for one in (await http.get("/api/users/cura/curations")).json()["curations"]] == [
        "rename",
        "split",
    ]
    assert (await http.delete(answers[1].headers["location"])).status_code == 404
    early = await http.put("/api/users/cura/clusters/b/label", json={"label": "Not stored yet"})
    assert (await http.delete(early.headers["location"])).status_code == 202
    others = early.headers["location"].replace("cura", "another", 1)
    assert (await http.delete(others)).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "field"),
    [
        ("PUT", "/api/users/cura/clusters/z/label", {"label": "x"}, 404, None),
        ("PUT", "/api/users/nobody/clusters/a/label", {"label": "x"}, 404, None),
        ("PUT", f"{PATH}/label", {"label": " "}, 422, "label"),
        ("PUT", f"{PATH}/label", {"label": "x" * 241}, 422, "label"),
        ("POST", f"{PATH}/merge", {"cluster_ids": []}, 422, "cluster_ids"),
        ("POST", f"{PATH}/merge", {"cluster_ids": ["a"]}, 422, "cluster_ids"),
        ("POST", f"{PATH}/merge", {"cluster_ids": ["z"]}, 422, "cluster_ids"),
        ("POST", f"{PATH}/split", {"parts": [{"insight_ids": ["cu1#5"]}]}, 422, "parts"),
        ("POST", f"{PATH}/split", {"parts": [{"insight_ids": [f"cu1#{n}" for n in range(1, 5)]}]}, 422, "parts"),
        ("DELETE", "/api/users/cura/curations/none", None, 404, None),
        ("PUT", "/api/users/cura/naming", {"wish": "by product"}, 409, None),
        ("PUT", "/api/users/cura/naming", {"wish": " "}, 422, "wish"),
    ],
)
@pytest.mark.usefixtures("seen")
async def test_what_does_not_fit_the_clusters_that_are_seen_is_refused(
    http, method: str, path: str, body: Any, status: int, field: str | None
) -> None:
    """With the field at fault, and nothing is published."""
    answer = await http.request(method, path, json=body)
    assert (answer.status_code, answer.json().get("field")) == (status, field), answer.text


async def test_there_is_room_for_a_hundred(http, seeds: Seeds, seen: list[str]) -> None:
    """The next one is a conflict; renaming is still accepted."""
    await seeds.rebuild("full", [cluster("a", seen[:4]), cluster("b", seen[4:])])
    first = await http.put("/api/users/full/clusters/a/label", json={"label": "x"})
    held = [first.headers["location"].rsplit("/", 1)[1], *(f"c{n}" for n in range(CURATIONS_MAX - 1))]
    stored = json.dumps({"kind": "rename", "cluster_id": "z", "label": "x", "cluster_ids": [], "parts": []})
    for curation_id in held:
        await seeds.run("INSERT INTO cluster_curations VALUES ('full', $1, $2, 1, 0, 0)", curation_id, stored)
    assert (await http.put("/api/users/full/clusters/b/label", json={"label": "x"})).status_code == 409
    assert (await http.put("/api/users/full/clusters/a/label", json={"label": "y"})).status_code == 202
