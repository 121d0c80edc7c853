"""The digest of a feed over HTTP: what is new since a version, in each form, conditionally, and by the command."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any
from xml.etree import ElementTree as ET

import httpx2

from highwater.streams.clock import ProductClock, to_datetime
from tests.integration.api_server import NOW, Seeds, cluster
from tests.integration.commands import run

ATOM = "{http://www.w3.org/2005/Atom}"
FORMS = ("digest", "digest/atom", "digest/json-feed")


async def _read(http: httpx2.AsyncClient, user: str, form: str = "digest", **params: Any) -> httpx2.Response:
    answer = await http.get(f"/api/users/{user}/{form}", params=params)
    assert answer.status_code == 200, answer.text
    return answer


async def _told(seeds: Seeds, user: str, channel: str) -> list[str]:
    """Two versions: in the second, a has two bumps and one other text, b one text, and one insight is in no cluster."""
    ids = await seeds.channel(channel, 8)
    texts = {
        ids[2]: "Bump attrs from 1.0 to 1.1",
        ids[3]: "Bump black from 23 to 24",
        ids[4]: "Drop the lock file",
        ids[6]: "Quotas count <b>bytes</b> & requests",
        ids[7]: "Translate the menu",
    }
    for insight_id, text in texts.items():
        await seeds.change("insights", "insight_id", insight_id, text=text)
    await seeds.change("insights", "insight_id", ids[0], ts=NOW - timedelta(days=8))
    at = NOW + timedelta(hours=1)
    await seeds.rebuild(user, [cluster("a", ids[:2]), cluster("b", ids[5:6])], at - timedelta(days=3))
    a = cluster("a", ids[:5], since=[1, 1, 2, 2, 2], changed=2, theme="Dependencies", label="Deps", title="Deps")
    b = cluster("b", ids[5:7], since=[1, 2], changed=2, label="Quotas", title="Quotas")
    await seeds.rebuild(user, [a, b], at, outside=ids[7:], outside_arrived=[2])
    return ids


async def test_a_digest_says_what_arrived_since_a_version(http: httpx2.AsyncClient, seeds: Seeds) -> None:
    """Examples, bumps, growth, channels and days of each cluster; and the position, from which the next one is empty."""
    ids = await _told(seeds, "dee", "d1")
    document = (await _read(http, "dee", since=1)).json()
    facts = ("user_id", "since", "cluster_version", "position", "language", "new_count", "cluster_count")
    assert [document[name] for name in facts] == ["dee", 1, 2, "feeds.rebuild-requested/0/2", "en", 5, 2]
    assert (document["since_at"], document["updated_at"]) == ("2026-11-17T13:00:00Z", "2026-11-20T13:00:00Z")
    deps, quotas, outside = document["sections"]
    assert deps == {
        "cluster_id": "a",
        "label": "Deps",
        "theme": "Dependencies",
        "is_new": False,
        "is_left_over": False,
        "size": 5,
        "new_count": 3,
        "arrived_version": 2,
        "week": 4,
        "week_before": 1,
        "channels": [{"channel_id": "d1", "count": 3}],
        "first_at": "2026-11-20T12:00:00Z",
        "last_at": "2026-11-20T12:00:00Z",
        "examples": [
            {
                "insight_id": ids[4],
                "channel_id": "d1",
                "ts": "2026-11-20T12:00:00Z",
                "text": "Drop the lock file",
                "url": "https://example.org/5",
                "alike_count": 0,
                "is_odd": False,
            }
        ],
        "bumps": {"count": 2, "names": ["attrs", "black"]},
    }
    assert [quotas["label"], quotas["new_count"], quotas["bumps"]] == ["Quotas", 1, None]
    assert [outside["cluster_id"], outside["is_left_over"], outside["examples"][0]["text"]] == [
        None, True, "Translate the menu",
    ]  # fmt: skip
    after = (await _read(http, "dee", since=document["cluster_version"])).json()
    assert (after["new_count"], after["sections"], after["position"]) == (0, [], document["position"])
    assert after["since_at"] == document["updated_at"]


async def test_without_since_a_digest_begins_a_day_ago(http: httpx2.AsyncClient, seeds: Seeds) -> None:
    """With the newest version of that time, also one whose clusters are no longer kept; with all if there was none."""
    ids, now = await seeds.channel("d2", 3), to_datetime(ProductClock()())
    ages = (timedelta(days=3), timedelta(days=2), timedelta(hours=3))
    for number, age in enumerate(ages, start=1):
        change = {"cluster_id": "a", "kind": "grew", "label": "a", "size": number, "previous_size": 0, "joined": 1}
        more = {"arrived": 1, "left": 0, "expired": 0, "jaccard": 0.5, "related": []}
        arrived = list(range(1, number + 1))
        await seeds.rebuild("dan", [cluster("a", ids[:number], since=arrived)], now - age, history=[{**change, **more}])
    assert (await _read(http, "dan")).json()["since"] == 2
    await seeds.run("DELETE FROM user_clusters WHERE user_id = 'dan' AND cluster_version < 3")
    document = (await _read(http, "dan")).json()
    assert (document["since"], document["new_count"], document["since_at"] is not None) == (2, 1, True)
    await seeds.rebuild("dot", [cluster("a", ids)], now)
    document = (await _read(http, "dot")).json()
    assert (document["since"], document["since_at"], document["new_count"]) == (0, None, 3)


async def test_each_form_is_conditional(http: httpx2.AsyncClient, seeds: Seeds) -> None:
    """A 304 for its own ETag until the clusters change; another form or another `since` has another ETag."""
    await _told(seeds, "dia", "d3")
    tags = {form: (await _read(http, "dia", form, since=1)).headers["etag"] for form in FORMS}
    tags["other"] = (await _read(http, "dia", since=0)).headers["etag"]
    assert len(set(tags.values())) == len(tags)
    for form in FORMS:
        known = {"If-None-Match": tags[form]}
        path = f"/api/users/dia/{form}?since=1"
        again = await http.get(path, headers=known)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["x-resource-version"] == (await http.get(path)).headers["x-resource-version"]
    ids = await seeds.channel("d4", 1)
    await seeds.rebuild("dia", [cluster("n", ids, since=[3])], NOW + timedelta(hours=2))
    known = {"If-None-Match": tags["digest"]}
    changed = await http.get("/api/users/dia/digest?since=1", headers=known)
    assert (changed.status_code, changed.json()["cluster_version"]) == (200, 3)


async def test_feed_readers_get_an_entry_for_each_cluster(http: httpx2.AsyncClient, seeds: Seeds) -> None:
    """As Atom and as JSON Feed: the same entries under the same ids, which last until the cluster has more news."""
    await _told(seeds, "dora", "d5")
    answer = await _read(http, "dora", "digest/atom", since=1)
    assert answer.headers["content-type"] == "application/atom+xml"
    feed = ET.fromstring(answer.content)
    entries = feed.findall(f"{ATOM}entry")
    assert [entry.findtext(f"{ATOM}title") for entry in entries] == ["Deps", "Quotas", "In no cluster"]
    quoted = "<li>Quotas count &lt;b&gt;bytes&lt;/b&gt; &amp; requests</li>"
    assert quoted in (entries[1].findtext(f"{ATOM}content") or "")
    subtitle = feed.findtext(f"{ATOM}subtitle") or ""
    assert subtitle.startswith("5 new insights · 2 clusters · since 2026-11-17, 13:00 UTC")
    assert "version 2 (feeds.rebuild-requested/0/2)" in subtitle
    assert feed.findtext(f"{ATOM}updated") == "2026-11-20T13:00:00Z"
    named = {link.get("rel"): link.get("href") for link in feed.findall(f"{ATOM}link")}
    base = str(http.base_url).rstrip("/")
    assert named == {"self": str(answer.url), "alternate": f"{base}/read/feed?user=dora"}

    answer = await _read(http, "dora", "digest/json-feed", since=1)
    assert answer.headers["content-type"] == "application/feed+json"
    document = answer.json()
    assert document["version"] == "https://jsonfeed.org/version/1.1"
    assert document["_highwater"] == {"since": 1, "cluster_version": 2, "position": "feeds.rebuild-requested/0/2"}
    ids = [item["id"] for item in document["items"]]
    assert ids == [entry.findtext(f"{ATOM}id") for entry in entries]
    # From an earlier version on it has the same entry, since the last insight of the cluster arrived in version 2.
    earlier = (await _read(http, "dora", "digest/json-feed", since=0)).json()
    assert {item["title"]: item["id"] for item in earlier["items"]}.items() >= {"Deps": ids[0]}.items()


async def test_a_day_without_news_has_no_entries_and_says_so(http: httpx2.AsyncClient, seeds: Seeds) -> None:
    """The description of the feed has the time since which nothing came; an unknown user has nothing yet."""
    await _told(seeds, "dina", "d6")
    document = (await _read(http, "dina", "digest/json-feed", since=2)).json()
    assert document["items"] == []
    assert document["description"].startswith("Nothing new since 2026-11-20, 13:00 UTC.")
    unknown = (await _read(http, "unknown", "digest/json-feed")).json()
    assert (unknown["items"], unknown["description"]) == ([], "Nothing yet.")
    assert ET.fromstring((await _read(http, "unknown", "digest/atom")).content).findall(f"{ATOM}entry") == []


async def test_a_version_of_the_future_is_refused(http: httpx2.AsyncClient, seeds: Seeds) -> None:
    """As by the feed, and also where the client has an ETag."""
    await _told(seeds, "dov", "d7")
    for form in FORMS:
        answer = await http.get(f"/api/users/dov/{form}?since=3", headers={"If-None-Match": "*"})
        assert (answer.status_code, answer.json()["field"]) == (400, "since")


async def test_texts_with_unprintable_characters_are_served(http: httpx2.AsyncClient, seeds: Seeds) -> None:
    """XML has no form for control characters: they are left out, and the feed stays well-formed."""
    ids = await seeds.channel("d8", 1)
    await seeds.change("insights", "insight_id", ids[0], text="a \x0b\x1b[31mred\ufffe word of\x7f warning")
    await seeds.rebuild("dee2", [cluster("a", ids)])
    feed = ET.fromstring((await _read(http, "dee2", "digest/atom", since=0)).content)
    assert "red word of" in (feed.findtext(f"{ATOM}entry/{ATOM}content") or "")


async def test_the_command_shows_a_digest(seeds: Seeds, api_environment: dict[str, str]) -> None:
    """As text, or as the API's JSON; both say where the next one begins."""
    await _told(seeds, "dex", "d9")
    shown = await asyncio.to_thread(run, api_environment, "users", "digest", "dex", "--since", "1")
    assert "- 2 version bumps: attrs, black\n" in shown.stdout, shown.stderr
    assert shown.stdout.endswith("version 2 (feeds.rebuild-requested/0/2). The next digest begins there.\n")
    printed = await asyncio.to_thread(run, api_environment, "users", "digest", "dex", "--since", "2", "--json")
    document = json.loads(printed.stdout)
    assert (document["cluster_version"], document["sections"]) == (2, [])
