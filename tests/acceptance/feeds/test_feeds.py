"""Event in, API out: the feeds subsystem as its users see it."""

from __future__ import annotations

import collections
import gzip
import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from tests import ROOT
from tests.product import TICK_SECONDS, Product

BUNDLED = ROOT / "api" / "sample"
INGESTED = "feeds.insight-ingested"


def sample() -> list[dict[str, Any]]:
    """Real commit subjects: the bundled 3,000, or those in the folder that HW_DATA names."""
    with gzip.open(Path(os.environ.get("HW_DATA") or BUNDLED) / "commits.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def insights(channel: str, count: int, *, first: int = 0) -> list[dict[str, Any]]:
    """Insights of one channel, with ids of their own and texts that resemble each other."""
    return [
        {"insight_id": f"{channel}-{i}", "channel_id": channel, "ts": "2026-11-20T00:00:00Z",
         "text": f"Fix the {('parser', 'cache', 'broker')[i % 3]} when the input of case {i % 7} is empty"}
        for i in range(first, first + count)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def commits(product: Product) -> dict[str, int]:
    """The sample published once with one line that is not an event: insights per channel."""
    rows = sample()
    counts = collections.Counter(row["channel_id"] for row in rows)
    text = "".join(json.dumps(row) + "\n" for row in [*rows, {"insight_id": "x"}])
    done = product.cli("publish", INGESTED, "-", "--rebase-to", "now", stdin=text, check=False)
    assert (done.returncode, "missing" in done.stderr) == (1, True), done.stderr
    product.until(lambda: heads(product, counts) == dict(counts), "heads differ from counts")
    return dict(counts)


def heads(product: Product, channels: Any) -> dict[str, int]:
    """current_seq of channels, by the API."""
    found = {}
    for channel in channels:
        answer = product.get(f"/api/channels/{quote(channel, safe='')}")
        found[channel] = answer.json()["current_seq"] if answer.status_code == 200 else 0
    return found


def rebuilt(product: Product, user: str) -> dict[str, Any]:
    """The user's clusters once pending is 0: a rest below N is requested manually."""
    product.until(lambda: product.pending(user)["cluster_version"] >= 1, f"{user} has no clusters", 120)
    product.until(lambda: not product.pending(user)["in_flight"], f"{user} stays in flight", 120)
    if product.pending(user)["pending"]:
        assert product.http.post(f"/api/users/{user}/rebuild").status_code == 202
    product.until(lambda: product.pending(user)["pending"] == 0, f"pending of {user} stays above 0", 120)
    found: dict[str, Any] = product.get(f"/api/users/{user}/clusters").json()
    return found


@pytest.mark.requirement("R0.14")
def test_published_twice_changes_nothing(product: Product, commits: dict[str, int]) -> None:
    """The same file again leaves every head and row as it was (R0.14)."""
    before = product.sql("SELECT count(*) AS n, sum(seq) AS s, max(arrived_at) AS t FROM insights")
    ends = product.ends(INGESTED)
    product.publish(INGESTED, sample())
    last = [f"{INGESTED}/{p}/{end - 1}" for p, end in product.ends(INGESTED).items() if end > ends[p]]
    assert last
    channel = next(iter(commits))
    answer = product.get(
        f"/api/channels/{quote(channel, safe='')}", X_Min_Position=",".join(last), X_Max_Wait_Ms="20000"
    )
    assert answer.status_code == 200
    assert heads(product, commits) == commits
    assert product.sql("SELECT count(*) AS n, sum(seq) AS s, max(arrived_at) AS t FROM insights") == before


@pytest.mark.requirement("R0.11")
def test_seq_is_dense_and_in_the_order_of_the_file(product: Product, commits: dict[str, int]) -> None:
    """Seq counts each channel from 1 without a gap, in the order published (R0.11)."""
    expected: dict[str, list[str]] = collections.defaultdict(list)
    for row in sample():
        expected[row["channel_id"]].append(row["insight_id"])
    rows = product.sql(
        "SELECT channel_id, insight_id, seq FROM insights WHERE channel_id = ANY ($1) ORDER BY 1, 3", list(commits)
    )
    found: dict[str, list[str]] = collections.defaultdict(list)
    for row in rows:
        found[row["channel_id"]].append(row["insight_id"])
        assert len(found[row["channel_id"]]) == row["seq"]
    assert dict(expected) == dict(found)


def test_clusters_feed_and_304(product: Product, commits: dict[str, int]) -> None:
    """A subscriber of all channels gets labelled clusters, a feed under the same themes, and 304 until something new happens."""
    product.subscribe("reader", sorted(commits))
    clusters = rebuilt(product, "reader")
    assert len(clusters["clusters"]) >= 3
    assert all(
        c["label"] and c["keywords"] and c["representative_id"] in c["insight_ids"] for c in clusters["clusters"]
    )
    assert sum(commits.values()) == sum(c["size"] for c in clusters["clusters"]) + clusters["noise"]

    feed = product.get("/api/users/reader/feed")
    assert feed.status_code == 200
    themes = {one["cluster_id"]: one["theme"] for one in clusters["clusters"]}
    shown = {item["cluster_id"]: item["theme"] for item in feed.json()["items"]}
    assert shown
    assert shown.items() <= themes.items()
    assert feed.headers["x-caused-by"].startswith("feeds.rebuild-requested/")
    assert int(feed.headers["x-resource-version"]) >= 1
    history = f"/api/users/reader/clusters/{clusters['clusters'][0]['cluster_id']}/history"
    for path in ("/api/users/reader/feed", "/api/users/reader/clusters", history):
        assert product.own_token(path) == feed.headers["x-caused-by"]
    etag = feed.headers["etag"]
    for condition in (etag, f'"nope", {etag}', "*"):
        again = product.get("/api/users/reader/feed", If_None_Match=condition)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)


def test_the_second_version_holds_what_the_first_held(product: Product, commits: dict[str, int]) -> None:
    """Years of history came with the first version; one more insight, of a channel that is joined, takes none of it away."""
    product.publish(INGESTED, insights("one-more", 1))
    # A channel that is joined before its insight is stored brings no history, and one new insight makes nothing due.
    product.until(
        lambda: product.sql("SELECT FROM channels WHERE channel_id = 'one-more'"), "the insight is not stored"
    )
    product.subscribe("reader", [*sorted(commits), "one-more"])

    def shown() -> int:
        clusters = product.get("/api/users/reader/clusters").json()
        return sum(one["size"] for one in clusters["clusters"]) + int(clusters["noise"])

    product.until(lambda: shown() != sum(commits.values()), "the joined channel makes no rebuild due")
    assert shown() == sum(commits.values()) + 1


def test_a_reader_says_what_the_clusters_are(product: Product) -> None:
    """A name and a merge are in the next version and its feed, and the explanation names the event."""
    product.publish(INGESTED, insights("curated", 60))
    product.subscribe("curator", ["curated"])
    (first, second, *_) = rebuilt(product, "curator")["clusters"]
    path = f"/api/users/curator/clusters/{first['cluster_id']}"
    merged = product.http.post(f"{path}/merge", json={"cluster_ids": [second["cluster_id"]]})
    named = product.http.put(f"{path}/label", json={"label": "Mine"})
    assert (merged.status_code, named.status_code) == (202, 202), (merged.text, named.text)

    def clusters() -> dict[str, Any]:
        return {one["cluster_id"]: one for one in product.get("/api/users/curator/clusters").json()["clusters"]}

    product.until(lambda: clusters()[first["cluster_id"]]["label"] == "Mine", "the name is not shown")
    assert second["cluster_id"] not in clusters()
    assert clusters()[first["cluster_id"]]["size"] == first["size"] + second["size"]
    assert "Mine" in [item["title"] for item in product.get("/api/users/curator/feed").json()["items"]]
    assert named.json()["positions"][0] in product.cli("explain", "feed", "curator", "--json").stdout


@pytest.mark.requirement("R0.12")
def test_two_quick_changes_end_as_the_last(product: Product) -> None:
    """Two changes of one subscription set, one right after the other, end as the last (R0.12)."""
    product.subscribe("hasty", ["one", "two"])
    told = product.subscribe("hasty", ["two", "three"]).split(",")
    positions = ",".join(position for position in told if position.startswith("feeds.subscriptions-replaced/"))
    answer = product.get("/api/users/hasty/subscriptions", X_Min_Position=positions, X_Max_Wait_Ms="10000")
    assert (answer.status_code, sorted(answer.json()["channels"])) == (200, ["three", "two"])


@pytest.mark.requirement("R0.37")
def test_what_arrives_during_a_rebuild_stays_pending(product: Product) -> None:
    """Insights published while a rebuild runs are pending afterwards, all k of them; one command at most was queued (R0.37)."""
    product.publish(INGESTED, insights("busy", 60))
    product.subscribe("watcher", ["busy"])
    first = rebuilt(product, "watcher")["cluster_version"]
    worker = psutil.Process(product.role_pid("workers"))
    pool = [child.pid for child in worker.children(recursive=True)]
    assert pool, "the rebuild worker has no process to cluster in"
    product.publish(INGESTED, insights("busy", 1, first=60))
    product.until(lambda: product.pending("watcher")["pending"] == 1, "the insight is not counted")
    with product.frozen(*pool):
        assert product.http.post("/api/users/watcher/rebuild").status_code == 202
        product.until(lambda: product.pending("watcher")["in_flight"], "the rebuild does not start")
        requests = product.ends("feeds.rebuild-requested")
        product.publish(INGESTED, insights("busy", 7, first=61))
        product.until(lambda: product.pending("watcher")["pending"] == 8, "the insights are not counted")
    product.until(lambda: product.pending("watcher")["cluster_version"] == first + 1, "the rebuild does not end")
    assert product.pending("watcher")["pending"] == 7
    queued = [m for m in product.records("feeds.rebuild-requested", requests) if m.key() == b"watcher"]
    assert len(queued) <= 1


@pytest.mark.requirement("R0.13")
def test_ten_thousand_subscribers_cost_nothing_at_ingest(product: Product) -> None:
    """100 insights in a channel of 10,000 subscribers cause no user-keyed message, row or key before the tick (R0.13)."""
    users = [f"crowd-{i}" for i in range(10_000)]
    product.publish(
        "feeds.subscription-changed",
        [{"user_id": u, "channel_id": "stage", "subscribed": True, "ts": "2026-11-20T00:00:00Z"} for u in users],
    )
    count = "SELECT count(*) AS n FROM subscriptions WHERE channel_id = 'stage' AND subscribed"
    product.until(lambda: product.sql(count)[0]["n"] == len(users), "the subscriptions are not stored")
    settle(product)
    with product.frozen(product.role_pid("worker")):  # no ticks
        before = user_side(product)
        product.publish(INGESTED, insights("stage", 100))
        product.until(lambda: heads(product, ["stage"]) == {"stage": 100}, "the insights are not stored")
        assert user_side(product) == before
    told = "SELECT announced_seq AS n FROM channels WHERE channel_id = 'stage'"
    product.until(lambda: product.sql(told)[0]["n"] == 100, "the subscribers are not told after the tick")
    ends = product.ends("feeds.novelty")
    assert sum(ends.values()) > sum(before["feeds.novelty"].values())


def settle(product: Product) -> None:
    """Wait until sinks, outbox, fan-out and mirror have nothing in progress."""

    def quiet() -> bool:
        groups = json.loads(product.cli("lag", "--json").stdout)
        behind = sum(p["events"] for group in groups for p in group["partitions"] if p["topic"] != "streams.tick")
        return behind == 0 and not product.sql("SELECT 1 FROM outbox LIMIT 1")

    product.until(quiet, "the system does not come to rest", 180)


def user_side(product: Product) -> dict[str, Any]:
    """Everything keyed by user: ends of topics, rows of tables, keys of Redis."""
    topics = (
        "feeds.user-changed",
        "feeds.novelty",
        "feeds.rebuild-requested",
        "feeds.rebuild-finished",
        "cache.version-bumped",
    )
    tables = ("user_stats", "user_cluster_hwm", "user_clusters", "feed_documents", "resource_versions", "outbox")
    import redis

    with redis.Redis.from_url(product.environment["REDIS_URL"]) as client:
        keys = sorted(itertools.chain(client.scan_iter("us:*", 1000), client.scan_iter("hwm:*", 1000)))
    return {
        **{topic: product.ends(topic) for topic in topics},
        **{table: product.sql(f"SELECT count(*) AS n FROM {table}")[0]["n"] for table in tables},
        "keys": keys,
    }


@pytest.mark.requirement("R0.12")
def test_a_quiet_channel_still_makes_its_subscriber_due(product: Product) -> None:
    """A new subscriber of a channel with 1,000 old insights and no new ones gets a rebuild within two ticks (R0.12)."""
    product.publish(INGESTED, insights("quiet", 1_000))
    product.until(lambda: heads(product, ["quiet"]) == {"quiet": 1_000}, "the insights are not stored")
    settle(product)
    starts = {topic: product.ends(topic) for topic in ("feeds.novelty", "feeds.rebuild-requested")}
    product.subscribe("latecomer", ["quiet"])
    product.until(lambda: product.pending("latecomer")["cluster_version"] == 1, "no rebuild", 60)
    codec = product.codec()
    told = min(
        message.timestamp()[1]
        for message in product.records("feeds.novelty", starts["feeds.novelty"])
        if "latecomer" in codec.decode("feeds.novelty", message.value())["heads"][0]["users"]
    )
    request = next(
        m
        for m in product.records("feeds.rebuild-requested", starts["feeds.rebuild-requested"])
        if m.key() == b"latecomer"
    )
    planned = codec.decode("feeds.rebuild-requested", request.value())["planned_at"]
    assert planned - told <= 2 * TICK_SECONDS * 1000


@pytest.mark.requirement("R0.8")
def test_one_more_insight_is_pending_and_no_new_version(product: Product) -> None:
    """An insight below N and before T is counted, and nothing is rebuilt for it (R0.8)."""
    product.publish(INGESTED, insights("slow", 60))
    product.subscribe("patient", ["slow"])
    version = rebuilt(product, "patient")["cluster_version"]
    starts = product.ends("feeds.rebuild-requested")
    ticks = product.ends("streams.tick")
    product.publish(INGESTED, insights("slow", 1, first=60))
    product.until(lambda: product.pending("patient")["pending"] == 1, "the insight is not counted")
    product.until(
        lambda: all(end >= ticks[p] + 6 for p, end in product.ends("streams.tick").items()), "no six ticks", 60
    )
    assert (product.pending("patient")["pending"], product.pending("patient")["cluster_version"]) == (1, version)
    assert [m for m in product.records("feeds.rebuild-requested", starts) if m.key() == b"patient"] == []


@pytest.mark.requirement("R0.40")
def test_feed_is_built_once_under_concurrency(product: Product) -> None:
    """Twenty readers of a version not read before cause one stored document (R0.40)."""
    product.publish(INGESTED, insights("popular", 60))
    product.subscribe("star", ["popular"])
    rebuilt(product, "star")
    answers: list[Any] = []
    readers = [threading.Thread(target=lambda: answers.append(product.get("/api/users/star/feed"))) for _ in range(20)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    versions = product.sql("SELECT version FROM resource_versions WHERE key = 'feed:star'")
    bumps = [m for m in product.records("cache.version-bumped") if m.key() == b"feed:star"]
    assert (len(versions), len(bumps)) == (1, 1)


def test_a_retracted_insight_leaves_later_rebuilds(product: Product) -> None:
    """A retraction keeps the number and leaves the insight out of later rebuilds."""
    product.publish(INGESTED, insights("regret", 60))
    product.subscribe("editor", ["regret"])
    before = rebuilt(product, "editor")
    starts = product.ends("feeds.insight-retracted")
    product.publish(
        "feeds.insight-retracted", [{"insight_id": "regret-0", "channel_id": "regret", "ts": "2026-11-20T00:00:00Z"}]
    )
    gone = [
        f"feeds.insight-retracted/{p}/{e - 1}"
        for p, e in product.ends("feeds.insight-retracted").items()
        if e > starts[p]
    ]
    product.until(
        lambda: product.sql("SELECT 1 FROM insights WHERE insight_id = 'regret-0' AND retracted_at IS NOT NULL"),
        "not retracted",
    )
    assert gone
    # Without a request: a retraction of a shown insight makes the rebuild due.
    product.until(lambda: product.pending("editor")["cluster_version"] > before["cluster_version"], "no rebuild")
    after = product.get("/api/users/editor/clusters").json()
    assert "regret-0" not in {i for c in after["clusters"] for i in c["insight_ids"]}
    assert sum(c["size"] for c in after["clusters"]) + after["noise"] == 59
    assert heads(product, ["regret"]) == {"regret": 60}


@pytest.mark.requirement("R0.35")
def test_a_demand_with_nothing_new_moves_no_version(product: Product) -> None:
    """A manual rebuild runs at 0 pending and reports its outcome; clients still get 304 (R0.35)."""
    product.publish(INGESTED, insights("calm", 60))
    product.subscribe("nora", ["calm"])
    version = rebuilt(product, "nora")["cluster_version"]
    etag = product.get("/api/users/nora/feed").headers["etag"]
    for asked, status, reason in (({}, "unchanged", ""), ({"if_new": "true"}, "skipped", "nothing_new")):
        answer = product.http.post("/api/users/nora/rebuild", params=asked)
        assert answer.status_code == 202
        where = answer.headers["location"]
        product.until(lambda: product.get(where).json()["status"] != "pending", "no answer")  # noqa: B023 - within the turn
        said = product.get(where).json()
        assert (status, reason, version) == (said["status"], said["reason"], said["cluster_version"])
    assert product.get("/api/users/nora/feed", If_None_Match=etag).status_code == 304
    assert product.pending("nora")["cluster_version"] == version


def test_a_left_channel_leaves_the_feed(product: Product) -> None:
    """Without a request: leaving one channel of two makes a rebuild due, leaving the last one too; the feed is empty then."""
    for channel in ("kept", "left"):
        product.publish(INGESTED, insights(channel, 60))
    product.subscribe("mover", ["kept", "left"])
    rebuilt(product, "mover")

    def shown() -> str:
        clusters = product.get("/api/users/mover/clusters").json()
        return json.dumps([clusters["clusters"], clusters["outside"]])

    assert "left-0" in shown()
    product.subscribe("mover", ["kept"])
    product.until(lambda: "left-" not in shown(), "the left channel is still shown")
    assert "kept-0" in shown()
    product.subscribe("mover", [])
    product.until(lambda: "kept-" not in shown(), "the last channel is still shown")
    assert product.get("/api/users/mover/feed").json()["items"] == []
    assert product.pending("mover")["due"] is False


def test_an_erased_user_is_gone_and_may_return(product: Product) -> None:
    """Erasure removes a user's data and continues after empty tables; versions of a user who returns keep growing."""
    product.publish(INGESTED, insights("past", 60))
    product.subscribe("leaver", ["past"])
    rebuilt(product, "leaver")
    old = product.get("/api/users/leaver/feed")
    answer = product.http.delete("/api/users/leaver/data")
    assert answer.status_code == 202
    (erased,) = answer.json()["positions"]
    # The token of an erasure is one for every page that it empties, not for those of the feeds alone.
    for path in ("feed", "clusters", "achievements"):
        assert product.get(f"/api/users/leaver/{path}", X_Min_Position=erased).status_code == 200
    assert product.get("/api/predictions?user=leaver", X_Min_Position=erased).status_code == 200
    for path in ("users/leaver/feed", "users/leaver/clusters", "users/leaver/achievements", "predictions?user=leaver"):
        assert product.own_token(f"/api/{path}") == erased
    assert product.get("/api/explain/feed/leaver").json()["chain"][0]["position"] == erased
    assert product.sql("SELECT 1 FROM user_stats WHERE user_id = 'leaver'") == []
    for table in ("subscriptions", "user_cluster_hwm", "user_clusters", "feed_documents"):
        assert product.sql(f"SELECT 1 FROM {table} WHERE user_id = 'leaver'") == []
    product.subscribe("leaver", ["past"])
    rebuilt(product, "leaver")
    new = product.get("/api/users/leaver/feed", If_None_Match=old.headers["etag"])
    assert new.status_code == 200
    assert int(new.headers["x-resource-version"]) > int(old.headers["x-resource-version"])
    # A reader of a version before the erasure gets the answer that all is new and the changes are incomplete.
    last = old.json()["cluster_version"]
    since = product.get(f"/api/users/leaver/clusters?since={last}").json()
    assert (len(since["clusters"]), since["complete"]) == (len(new.json()["items"]), False)
    assert product.get(f"/api/users/leaver/feed?since={last}").json()["items"] != []
