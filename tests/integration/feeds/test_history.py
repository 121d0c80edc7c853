"""Clusters over versions as a reader sees them: their fields, the changes since a version, and the history of each."""

from __future__ import annotations

from typing import Any

import httpx2

from highwater.connectors.redis.resource_cache import TRUSTED_MS
from highwater.streams.feeds.tracking import ChangeKind
from tests.integration.api_server import (
    VERSIONS_KEPT,
    Api,
    Seeds,
    change,
    cluster,
    old_cluster,
    running_api,
)

KEYS = "viewer:eye-key,editor:ada-key:ada"


def _refused(response: httpx2.Response, status: int, field: str | None = None) -> None:
    assert (response.status_code, response.json().get("field")) == (status, field), response.text


async def test_clusters_carry_their_past_and_their_places(http, seeds: Seeds) -> None:
    """Everything stored of a cluster is served; basis, omitted insights and insights outside clusters are beside them."""
    stored = [cluster("a", ["i1", "i2", "i3"], since=[1, 1, 2], changed=2), cluster("b", ["i4"], born=2, changed=2)]
    await seeds.rebuild("ann", stored, outside=["i5", "i6"])
    document = (await http.get("/api/users/ann/clusters")).json()
    assert document["clusters"] == stored
    assert (document["basis_id"], document["left_out"]) == ("built-in-0", 0)
    assert document["outside"] == {"insight_ids": ["i5", "i6"], "positions": [[9.0, 9.0], [9.0, 9.0]]}
    assert sum(one["size"] for one in document["clusters"]) + document["noise"] == 6


async def test_a_version_from_before_is_served_as_it_is(http, seeds: Seeds) -> None:
    """Clusters stored before they had an identity keep their six keys, and nothing is made up beside them."""
    stored = [old_cluster("a", ["i1", "i2"])]
    await seeds.rebuild("abe", stored, outside=None)
    document = (await http.get("/api/users/abe/clusters")).json()
    assert document.keys() == {"user_id", "cluster_version", "updated_at", "clusters", "noise"}
    assert document["clusters"] == stored


async def test_what_is_no_cluster_comes_with_the_first_page(http, seeds: Seeds) -> None:
    """Pages join to all clusters; places outside and dead clusters are returned once, also to a reader of changes."""
    await seeds.rebuild("pat", [cluster(name, [name]) for name in "abc"], outside=["i9"])
    for query, told in (("", {"outside"}), ("&since=0", {"outside", "died"})):
        first = (await http.get(f"/api/users/pat/clusters?limit=2{query}")).json()
        path = f"/api/users/pat/clusters?limit=2&cursor={first['next_cursor']}{query}"
        second = (await http.get(path)).json()
        assert [one["cluster_id"] for one in first["clusters"] + second["clusters"]] == ["a", "b", "c"]
        assert first.keys() - second.keys() == told
        assert second["next_cursor"] is None


async def _three_versions(seeds: Seeds, user: str) -> None:
    """Cluster a exists from 1 on and grows in 3; b is born in 2 and dies in 3; c is born in 3; d stays as it was born."""
    d = cluster("d", ["i7"])
    born = change("a", "born", size=2)
    await seeds.rebuild(user, [cluster("a", ["i1", "i2"]), d], history=[born, change("d", "born", size=1)])
    b = cluster("b", ["i3"], since=[2], born=2, changed=2)
    await seeds.rebuild(user, [cluster("a", ["i1", "i2"]), b, d], history=[change("b", "born", size=1)])
    grown = cluster("a", ["i1", "i2", "i3"], since=[1, 1, 3], changed=3)
    c = cluster("c", ["i4", "i5"], since=[3, 3], born=3, changed=3)
    history = [
        change("c", "born", size=2),
        change("a", "grew", size=3, previous_size=2, joined=1),
        change("a", "merged", size=3, previous_size=2, joined=1, related=["b"]),
        change("b", "died", size=0, previous_size=1, left=1, related=["a"]),
    ]
    await seeds.rebuild(user, [grown, c, d], history=history)


async def test_a_reader_is_told_what_changed_since(http, seeds: Seeds) -> None:
    """Only clusters that changed, with their new insights, and those that died; since 0 everything is new."""
    await _three_versions(seeds, "sue")

    async def since(version: int) -> dict[str, Any]:
        return (await http.get(f"/api/users/sue/clusters?since={version}")).json()

    document = await since(2)
    assert [(one["cluster_id"], one["is_new"], one["new_insight_ids"]) for one in document["clusters"]] == [
        ("a", False, ["i3"]),
        ("c", True, ["i4", "i5"]),
    ]
    assert document["died"] == [{"cluster_id": "b", "label": "died b", "version": 3, "related": ["a"]}]
    assert (document["since"], document["cluster_version"], document["complete"]) == (2, 3, True)
    everything = await since(0)
    assert [(one["cluster_id"], one["is_new"]) for one in everything["clusters"]] == [
        ("a", True),
        ("c", True),
        ("d", True),
    ]
    assert all(one["new_insight_ids"] == one["insight_ids"] for one in everything["clusters"])
    nothing = await since(3)
    assert (nothing["clusters"], nothing["died"], nothing["complete"]) == ([], [], True)
    earlier = (await http.get("/api/users/sue/clusters?version=2&since=1")).json()
    assert ([one["cluster_id"] for one in earlier["clusters"]], earlier["died"]) == (["b"], [])


async def test_what_is_new_has_a_tag_of_its_own(http, api: Api, seeds: Seeds) -> None:
    """Each version and `since` is one tag, good for 304 until the next version; above the version is 400, also for `*`."""
    await _three_versions(seeds, "tim")
    paths = [f"/api/users/tim/clusters{query}" for query in ("", "?since=1", "?since=2", "?since=2&version=3")]
    answers = [await http.get(path) for path in paths]
    tags = [answer.headers["etag"] for answer in answers]
    assert len(set(tags)) == 4
    for path, tag, first in zip(paths, tags, answers, strict=True):
        again = await http.get(path, headers={"If-None-Match": tag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["x-resource-version"] == first.headers["x-resource-version"]
        assert [t for t in tags if (await http.get(path, headers={"If-None-Match": t})).status_code == 304] == [tag]
    _refused(await http.get("/api/users/tim/clusters?since=4"), 400, "since")
    _refused(await http.get("/api/users/tim/clusters?since=4", headers={"If-None-Match": "*"}), 400, "since")
    assert (await http.get(paths[1], headers={"If-None-Match": "*"})).status_code == 304
    assert (await http.get("/api/users/tim/clusters?since=-1")).status_code == 422
    await seeds.rebuild("tim", [cluster("d", ["i7"])])
    api.clock.offset_ms += TRUSTED_MS + 1
    for path, tag in zip(paths[1:], tags[1:], strict=True):
        assert (await http.get(path, headers={"If-None-Match": tag})).status_code == 200


async def test_a_forgotten_past_is_said(http, seeds: Seeds) -> None:
    """Beyond the versions whose changes are kept, and before there were any, the answer says that it is not complete."""
    await _three_versions(seeds, "una")
    for _ in range(VERSIONS_KEPT):
        await seeds.rebuild("una", [cluster("d", ["i7"])])

    async def is_complete(user: str, since: int) -> bool:
        return (await http.get(f"/api/users/{user}/clusters?since={since}")).json()["complete"]

    assert [await is_complete("una", since) for since in (0, 2, 3, 8)] == [False, False, True, True]
    await seeds.rebuild("val", [old_cluster("x", ["i1"])], outside=None)
    assert [await is_complete("val", since) for since in (0, 1)] == [False, True]
    await seeds.rebuild(
        "val", [cluster("a", ["i1"], since=[2], born=2, changed=2)], history=[change("a", "born", size=1)]
    )
    assert [await is_complete("val", since) for since in (0, 1, 2)] == [False, False, True]


async def test_a_version_from_before_is_all_new(http, seeds: Seeds) -> None:
    """Clusters without a past are new to every reader of an earlier version, and to none of that very one."""
    await seeds.rebuild("wes", [old_cluster("a", ["i1"])], outside=None)
    await seeds.rebuild("wes", [old_cluster("b", ["i1", "i2"])], outside=None)
    (one,) = (await http.get("/api/users/wes/clusters?since=1")).json()["clusters"]
    assert (one["cluster_id"], one["is_new"], one["new_insight_ids"]) == ("b", True, ["i1", "i2"])
    assert (await http.get("/api/users/wes/clusters?since=2")).json()["clusters"] == []


async def test_a_life_is_told_from_its_beginning(http, seeds: Seeds) -> None:
    """Events oldest first, those of one version in the order of their kinds, with numbers, moments and causes."""
    await _three_versions(seeds, "xia")
    life = (await http.get("/api/users/xia/clusters/a/history")).json()
    assert {name: value for name, value in life.items() if name != "events"} == {
        "user_id": "xia",
        "cluster_id": "a",
        "label": "about a",
        "is_alive": True,
        "born_version": 1,
        "size": 3,
        "complete": True,
        "next_cursor": None,
    }
    assert [(one["cluster_version"], one["kind"]) for one in life["events"]] == [
        (1, "born"),
        (3, "grew"),
        (3, "merged"),
    ]
    assert life["events"][2] == {
        "cluster_version": 3,
        "kind": "merged",
        "label": "merged a",
        "size": 3,
        "previous_size": 2,
        "joined": 1,
        "arrived": 0,
        "left": 0,
        "expired": 0,
        "jaccard": 0.5,
        "related": ["b"],
        "evolved_at": "2026-11-20T12:00:00Z",
        "caused_by": "feeds.rebuild-requested/0/3",
    }
    dead = (await http.get("/api/users/xia/clusters/b/history")).json()
    assert [one["kind"] for one in dead["events"]] == ["born", "died"]
    assert (dead["is_alive"], dead["size"], dead["born_version"], dead["label"]) == (False, 0, 2, "died b")


async def test_a_living_cluster_outlives_its_history(http, seeds: Seeds) -> None:
    """If only the birth is remembered, size and label are the present ones, and missing events are indicated."""
    await seeds.rebuild("yve", [cluster("a", ["i1"])], history=[change("a", "born", size=1)])
    for _ in range(VERSIONS_KEPT):
        await seeds.rebuild("yve", [cluster("a", ["i1", "i2"])])
    life = (await http.get("/api/users/yve/clusters/a/history")).json()
    assert (life["size"], life["label"], life["complete"], len(life["events"])) == (2, "about a", True, 1)
    await seeds.rebuild("yve", [cluster("a", ["i1", "i2"])])
    assert (await http.get("/api/users/yve/clusters/a/history")).json()["complete"] is False


async def test_pages_of_a_life_join(http, seeds: Seeds) -> None:
    """Pages of any size give every event once and in order, also where one version has several."""
    kinds = [kind.value for kind in ChangeKind if kind not in (ChangeKind.BORN, ChangeKind.DIED)]
    expected = []
    for version in range(1, 4):
        await seeds.rebuild(
            "zoe", [cluster("a", ["i1"])], history=[change("a", kind, size=1) for kind in reversed(kinds)]
        )
        expected += [(version, kind) for kind in kinds]
    for limit in (1, 3, 4, 5, 12):
        seen, cursor = [], ""
        while True:
            page = (await http.get(f"/api/users/zoe/clusters/a/history?limit={limit}{cursor}")).json()
            seen += [(one["cluster_version"], one["kind"]) for one in page["events"]]
            if page["next_cursor"] is None:
                break
            assert len(page["events"]) == limit
            cursor = f"&cursor={page['next_cursor']}"
        assert seen == expected
    _refused(await http.get("/api/users/zoe/clusters/a/history?cursor=zzz"), 400, "cursor")


async def test_a_life_is_conditional(http, api: Api, seeds: Seeds) -> None:
    """Each cluster and page has its own tag, good until the next version of the clusters."""
    await _three_versions(seeds, "bea")
    paths = [f"/api/users/bea/clusters/{rest}" for rest in ("a/history", "a/history?limit=1", "b/history")]
    tags = [(await http.get(path)).headers["etag"] for path in paths]
    assert len(set(tags)) == 3
    for path, tag in zip(paths, tags, strict=True):
        again = await http.get(path, headers={"If-None-Match": tag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["x-caused-by"] == "feeds.rebuild-requested/0/3"
    await seeds.rebuild("bea", [cluster("a", ["i1"])])
    api.clock.offset_ms += TRUSTED_MS + 1
    for path, tag in zip(paths, tags, strict=True):
        assert (await http.get(path, headers={"If-None-Match": tag})).status_code == 200


async def test_a_cluster_nobody_had_has_no_life(http, seeds: Seeds) -> None:
    """404 for a cluster of another user, of no user, and for any `*`; ids are used as they are sent."""
    await _three_versions(seeds, "cal")
    await seeds.rebuild("cam", [cluster("mine/ü", ["i1"])])
    for path in ("cam/clusters/a/history", "nobody/clusters/a/history"):
        _refused(await http.get(f"/api/users/{path}"), 404)
        _refused(await http.get(f"/api/users/{path}", headers={"If-None-Match": "*"}), 404)
    found = await http.get("/api/users/cam/clusters/mine%2F%C3%BC/history")
    assert (found.status_code, found.json()["cluster_id"]) == (200, "mine/ü")
    again = await http.get(
        "/api/users/cam/clusters/mine%2F%C3%BC/history", headers={"If-None-Match": found.headers["etag"]}
    )
    assert again.status_code == 304


async def test_a_life_is_read_by_whom_the_clusters_are(own_settings, seeds: Seeds) -> None:
    """A bound key reads its own user's, a viewer any user's, a request without a key none; OpenAPI lists it."""
    await _three_versions(seeds, "ada")
    await _three_versions(seeds, "bob")
    with running_api(own_settings(HIGHWATER_API_KEYS=KEYS)) as guarded:

        async def status(token: str | None, user: str) -> int:
            async with guarded.client(token) as client:
                return (await client.get(f"/api/users/{user}/clusters/a/history")).status_code

        assert [await status(*who) for who in ((None, "ada"), ("ada-key", "bob"))] == [401, 403]
        assert [await status(*who) for who in (("ada-key", "ada"), ("eye-key", "bob"))] == [200, 200]
        async with guarded.client() as client:
            paths = (await client.get("/openapi.json")).json()["paths"]
    assert "history" in paths["/api/users/{user}/clusters/{cluster_id}/history"]["get"]["summary"]


async def test_a_read_with_a_position_sees_the_newest_version(http, seeds: Seeds) -> None:
    """With X-Min-Position versions come from PostgreSQL, for news and a cluster's history; another topic is 400."""
    written = await http.post("/api/users/dan/activity")
    topic, partition, offset = written.json()["positions"][0].split("/")
    await seeds.run(
        "INSERT INTO positions VALUES ('users', $1, $2, 'id', $3) "
        'ON CONFLICT ("group", topic, partition) DO UPDATE SET next = excluded.next',
        topic,
        int(partition),
        int(offset) + 1,
    )
    await seeds.rebuild("dan", [cluster("a", ["i1"])], history=[change("a", "born", size=1)])
    for path in ("/api/users/dan/clusters?since=0", "/api/users/dan/clusters/a/history"):
        tag = (await http.get(path)).headers["etag"]  # fills Redis
        await seeds.rebuild("dan", [cluster("a", ["i1", "i2"])], history=[change("a", "grew", size=2)])
        headers = {"X-Min-Position": f"{topic}/{partition}/{offset}", "If-None-Match": tag}
        assert (await http.get(path, headers=headers)).status_code == 200
        _refused(await http.get(path, headers={"X-Min-Position": "streams.tick/0/0"}), 400)
