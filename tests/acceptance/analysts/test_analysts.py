"""The tasks of an analyst with a running Highwater: replay, backtest, explain, a notebook; verify has `../verify`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import duckdb
import pytest

from highwater.api.cli.sample import READER, SEASON, load_sample
from highwater.schemas.json_events import event_to_json
from highwater.streams.settings import read_settings
from tests import ROOT
from tests.product import Product

TOPIC = "feeds.insight-ingested"
NOTEBOOK = ROOT / "docs" / "notebook.md"
Place = tuple[int, int]


@pytest.fixture(scope="module")
def published(product: Product) -> dict[Place, dict[str, Any]]:
    """The events of the topic by partition and offset, as another client reads them, once `ada` has clusters of the sample."""
    load_sample(read_settings(product.environment))
    product.until(lambda: product.pending(READER)["cluster_version"], "no clusters", 180)
    product.until(lambda: product.get(f"/api/league/{SEASON}/table").status_code == 200, "no table", 120)
    codec = product.codec()
    return {
        (record.partition(), record.offset()): event_to_json(TOPIC, codec.decode(TOPIC, record.value()))
        for record in product.records(TOPIC)
    }


def test_a_replay_is_what_was_published(
    product: Product, published: dict[Place, dict[str, Any]], tmp_path: Path
) -> None:
    """JSON lines hold every event once, each partition's in order, and no group's offsets move."""
    before = product.cli("lag", "--json").stdout
    out = tmp_path / "out.jsonl"
    product.cli("replay", TOPIC, "--format", "jsonl", "--output", str(out))
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert {(row["partition"], row["offset"]): row["value"] for row in rows} == published
    assert len(rows) == len(published)
    for partition in {row["partition"] for row in rows}:
        offsets = [row["offset"] for row in rows if row["partition"] == partition]
        assert offsets == sorted(offsets)
    assert offsets_of(before) == offsets_of(product.cli("lag", "--json").stdout)


def offsets_of(lag: str) -> dict[tuple[str, int], int]:
    """The output of `lag` for the readers of the topic."""
    rows = [row for group in json.loads(lag) for row in group["partitions"]]
    return {(row["topic"], row["partition"]): row["next"] for row in rows if row["topic"] == TOPIC}


def test_parquet_in_duckdb_is_the_same(
    product: Product, published: dict[Place, dict[str, Any]], tmp_path: Path
) -> None:
    """Another program reads the file: same rows, times as times and texts as texts."""
    out = tmp_path / "out.parquet"
    product.cli("replay", TOPIC, "--format", "parquet", "--output", str(out))
    statement = """
        SELECT partition, "offset", value.insight_id, value.channel_id,
               strftime(value.ts AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%S'), value.text
        FROM read_parquet(?)
    """
    rows = duckdb.sql(statement, params=[str(out)]).fetchall()
    expected = {
        (*place, one["insight_id"], one["channel_id"], one["ts"][:19], one["text"]) for place, one in published.items()
    }
    assert (set(rows), len(rows)) == (expected, len(expected))


def test_a_condition_that_does_not_parse_is_refused(product: Product) -> None:
    """The status is wrong use or failed, the place is pointed at, nothing is printed as a traceback."""
    done = product.cli("replay", TOPIC, "--where", "value.channel_id ==", check=False)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "^" in done.stderr


@pytest.mark.usefixtures("published")
def test_a_backtest_of_the_live_policy_asks_for_what_happened(product: Product, tmp_path: Path) -> None:
    """Over the recorded ticks the live policy makes exactly the recorded requests; with another one beside it too."""
    policy = tmp_path / "eager.toml"
    policy.write_text("[plans.free]\ncooldown_seconds = 60\nrebuild_interval_seconds = 60\n", encoding="utf-8")
    document = json.loads(product.cli("backtest", "--policy", str(policy), "--json").stdout)
    check = document["live_check"]
    recorded = {(record.partition(), record.offset()) for record in product.records("feeds.rebuild-requested")}
    assert 0 < check["recorded"] == check["same"] <= len(recorded)
    assert (check["missing"], check["extra"], check["other_policy"]) == (0, 0, 0)
    assert [one["policy"] for one in document["policies"]] == ["live", "eager"]
    assert document["policies"][0]["requests"] == check["recorded"]


def test_explain_reaches_the_insight(product: Product, published: dict[Place, dict[str, Any]]) -> None:
    """The chain behind a feed ends at events that are in the log; behind a league's page at its matches."""
    feed = product.cli("explain", "feed", READER, "--json").stdout
    named = {(int(p), int(o)) for p, o in re.findall(rf"{re.escape(TOPIC)}/(\d+)/(\d+)", feed)}
    assert named
    assert named <= set(published)
    page = product.cli("explain", "resource", f"league:table:{SEASON}", "--json").stdout
    assert "league.match-" in page


def test_the_root_is_the_dashboard(product: Product) -> None:
    """`/` is a page for people; what programs read is where it was."""
    answer = product.get("/")
    assert (answer.status_code, b"<html" in answer.content.lower()) == (200, True)
    assert product.get("/healthz").status_code == 200


def test_a_dead_letter_is_mended_and_arrives(product: Product) -> None:
    """A bad event goes to the dead letters, is edited, and is stored as if it had come so; the trace says who did it."""
    # An event that the API would refuse comes from a Kafka client: an insight without a channel.
    event = {"insight_id": "mend-1", "channel_id": "", "ts": 1_767_225_600_000, "text": "Mend me", "url": None,
             "embedding": None, "embedding_model": None}  # fmt: skip
    from confluent_kafka import Producer

    producer = Producer(product.producer_config())
    producer.produce(TOPIC, product.codec().encode(TOPIC, event), b"")
    assert producer.flush(30) == 0

    def letters() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(product.cli("dlq", "list", TOPIC, "--open", "--json").stdout)
        return found

    product.until(letters, "no dead letter")
    offset = letters()[-1]["position"].rsplit("/", 1)[1]
    product.cli("dlq", "edit", TOPIC, offset, "--set", "channel_id=mended", "--note", "it lost its channel", "--yes")
    product.until(lambda: product.get("/api/insights/mended/mend-1").status_code == 200, "the insight did not arrive")
    handled = json.loads(product.cli("dlq", "list", TOPIC, "--json").stdout)[-1]["handled"]
    assert [(one["action"], one["changed"], one["note"]) for one in handled] == [
        ("edited", ["channel_id"], "it lost its channel")
    ]


@pytest.mark.usefixtures("published")
def test_the_notebook_runs(product: Product, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every block of the documentation runs as it stands, and finds something."""
    monkeypatch.chdir(tmp_path)
    for name, value in product.environment.items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", NOTEBOOK.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(NOTEBOOK), "exec"), names)
    assert names["by_channel"].sum() == len(names["insights"]) >= 3000
    assert names["characters"] > 0
    assert len(names["busiest"]) == 5
    assert names["largest"].height > 0
    assert names["placed"].filter(names["placed"]["text"].is_not_null()).height > 0
    assert len(names["feed"]) > 0
    assert names["decisions"].height >= 1
    names["hw"].close()
