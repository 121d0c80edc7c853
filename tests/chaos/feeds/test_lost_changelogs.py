"""The worker's tables and the records that they are restored from are gone: it says so, and the events give them back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from highwater.connectors.chaos.changelogs import delete_changelogs
from highwater.connectors.kafka.offsets import committed_offsets
from highwater.connectors.verify.tables import changelog_of
from highwater.deploy.local.state import read_state
from highwater.streams.agents import GROUP
from tests.acceptance.feeds.test_feeds import INGESTED, insights, rebuilt
from tests.product import Product

pytestmark = pytest.mark.long

REQUESTED, FINISHED = "feeds.rebuild-requested", "feeds.rebuild-finished"
INPUTS = ("feeds.user-changed", "feeds.novelty", "feeds.channel-advanced", FINISHED)
REMEDY = "highwater recover-tables"


def why_it_ends(product: Product) -> str:
    """The supervisor's reason of the worker's last end."""
    state = read_state(product.data_dir)
    return "" if state is None else next(str(part["last_error"]) for part in state["parts"] if part["name"] == "worker")


def of_lena(product: Product, topic: str, starts: dict[int, int]) -> list[dict[str, Any]]:
    """The events of one user since then."""
    codec = product.codec()
    found = [codec.decode(topic, message.value()) for message in product.records(topic, starts)]
    return [one for one in found if one["user_id"] == "lena"]


def stored(product: Product, channel: str) -> int:
    """How many insights of a channel are stored."""
    answer = product.get(f"/api/channels/{channel}")
    return int(answer.json()["current_seq"]) if answer.status_code == 200 else 0


def is_committed(product: Product) -> bool:
    """Whether the worker has committed all events of users and channels that there are."""
    committed = committed_offsets(product.producer_config(), GROUP)
    places = [((topic, number), end) for topic in INPUTS for number, end in product.ends(topic).items() if end]
    return all(committed.get(place, 0) >= end for place, end in places)


def test_tables_without_a_changelog_are_refused_and_recovered(product: Product) -> None:
    """Nothing is decided on the rest of a table; recovered from the events it decides as before, and verifies."""
    product.publish(INGESTED, insights("lost", 60))
    product.until(lambda: stored(product, "lost") == 60, "not stored")  # or the first rebuild is without some
    product.subscribe("lena", ["lost"])
    product.publish(INGESTED, insights("taken", 5))
    product.until(lambda: stored(product, "taken") == 5, "not stored")
    [taken] = insights("taken", 1)
    del taken["text"]
    product.publish("feeds.insight-retracted", [taken])
    product.until(lambda: product.get("/api/insights/taken/taken-0").status_code != 200, "not retracted")
    version = rebuilt(product, "lena")["cluster_version"]
    product.publish(INGESTED, insights("lost", 10, first=60))
    product.until(lambda: product.pending("lena")["pending"] == 10, "not counted")
    # The worker reads uncommitted events again by itself: it would write rows, and send requests, before the recovered ones are
    # read.
    product.until(lambda: is_committed(product), "the worker does not commit")
    starts = {topic: product.ends(topic) for topic in (REQUESTED, FINISHED)}
    with product.frozen(product.role_pid("worker")):
        product.publish(INGESTED, insights("taken", 3, first=5))  # advances that the recovery must leave to the worker
        product.until(lambda: stored(product, "taken") == 8, "not stored")
        product.forget_decisions()
        delete_changelogs(product.producer_config())
        product.kill("worker")
    product.until(lambda: REMEDY in why_it_ends(product), "a loss is not noticed", 180)

    found = json.loads(product.cli("recover-tables", "--json").stdout)["recovered"]
    assert {one["table"] for one in found} >= {"users", "channel_heads", "ticks"}
    assert sum(one["rows"] for one in found if one["table"] == "users") >= 1
    product.until_ready(180)
    product.publish(INGESTED, insights("lost", 10, first=70))
    product.until(lambda: product.pending("lena")["cluster_version"] == version + 1, "no rebuild at N", 120)
    requests, finished = (of_lena(product, topic, starts) for topic, starts in starts.items())
    assert len(requests) == 1, (requests, finished)
    verified = json.loads(product.cli("verify", "--only", "tables", "--only", "decisions", "--json").stdout)
    assert verified["differences"] == 0, verified


def test_a_changelog_with_more_partitions_is_recreated_from_the_events(product: Product) -> None:
    """A worker refuses it and names the command; without the option nothing changes, with it the rows are as before."""
    product.publish(INGESTED, insights("wide", 60))
    product.until(lambda: stored(product, "wide") == 60, "not stored")
    product.subscribe("wilma", ["wide"])
    version = rebuilt(product, "wilma")["cluster_version"]
    product.publish(INGESTED, insights("wide", 10, first=60))
    product.until(lambda: product.pending("wilma")["pending"] == 10, "not counted")
    product.until(lambda: is_committed(product), "the worker does not commit")
    users = changelog_of("users")
    admin = AdminClient(product.producer_config())
    admin.create_partitions([NewPartitions(users, 12)])[users].result(20)
    product.kill("worker")
    product.until(lambda: f"{REMEDY} --recreate" in why_it_ends(product), "the number is not noticed", 180)

    ends = product.ends(users)
    refused = product.cli("recover-tables", check=False)
    assert (refused.returncode, f"{REMEDY} --recreate" in refused.stderr) == (1, True)
    assert product.ends(users) == ends
    found = json.loads(product.cli("recover-tables", "--recreate", "--json").stdout)["recovered"]
    assert [one["partition"] for one in found if one["table"] == "users"] == list(range(8))
    assert sum(one["rows"] for one in found) >= 1
    assert sorted(product.ends(users)) == list(range(8))
    product.until_ready(180)
    product.publish(INGESTED, insights("wide", 10, first=70))
    product.until(lambda: product.pending("wilma")["cluster_version"] == version + 1, "no rebuild at N", 120)
    assert json.loads(product.cli("verify", "--only", "tables", "--json").stdout)["differences"] == 0
