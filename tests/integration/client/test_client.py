"""The notebook client against real parts: topics as tables."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from highwater.api.client.client import Client
from highwater.connectors.replay.selection import InvalidSelectionError
from highwater.connectors.replay.where import WhereError
from highwater.schemas.errors import UnavailableError
from tests.integration.commands import printed, run

TOPIC = "feeds.insight-ingested"
COUNT = 300
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def hw(stack, monkeypatch, tmp_path):
    """A client of the session's parts."""
    monkeypatch.chdir(tmp_path)
    return Client(kafka=stack.kafka, schema_registry=stack.schema_registry, data_dir=tmp_path)


@pytest.fixture
def published(environment) -> list[dict[str, Any]]:
    """Insights of a channel of their own, as they were published."""
    channel = f"client-{uuid.uuid4().hex}"
    rows: list[dict[str, Any]] = [
        {
            "insight_id": f"{channel}-{i}",
            "channel_id": channel,
            "ts": f"2026-01-01T00:{i // 60:02}:{i % 60:02}Z",
            "text": f"text {i}",
        }
        for i in range(COUNT)
    ]
    rows[0]["embedding"] = [float(i) for i in range(384)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    assert printed(run(environment, "publish", TOPIC, "-", "--json", stdin=lines))["published"] == COUNT
    return rows


def test_a_topic_is_what_was_published(hw, published):
    """Every event once, in order, with Avro's types; what the log says stands beside it."""
    channel = published[0]["channel_id"]
    frame = hw.topic(TOPIC, key=channel)
    rows = frame.rows()
    assert [(row["insight_id"], row["text"]) for row in rows] == [(one["insight_id"], one["text"]) for one in published]
    assert rows[61]["ts"] == datetime(2026, 1, 1, 0, 1, 1, tzinfo=UTC)
    schema = frame.arrow().schema
    assert (schema.field("ts").type, schema.field("embedding").type) == (pa.timestamp("ms", "UTC"), pa.binary())
    assert {row["_key"] for row in rows} == {channel}
    assert [row["_offset"] for row in rows] == sorted(row["_offset"] for row in rows)
    assert frame.vectors().tolist() == [np.arange(384, dtype="<f4").tolist()]
    assert frame.pandas()["ts"].dt.tz is not None
    assert frame.polars().height == COUNT


def test_a_selection_is_read_and_no_more(hw, published):
    """Conditions, bounds and limits as `replay` takes them; the first few are the first that arrived."""
    channel = published[0]["channel_id"]
    found = hw.topic(TOPIC, where=f"value.channel_id == '{channel}' && value.text.endsWith('7')")
    assert len(found) == COUNT // 10
    first = hw.topic(TOPIC, key=channel, limit=5).rows()
    assert [row["insight_id"] for row in first] == [f"{channel}-{i}" for i in range(5)]
    place = f"{TOPIC}/{first[2]['_partition']}/{first[2]['_offset']}"
    two = hw.topic(TOPIC, start=place, key=channel, limit=2).rows()
    assert [row["insight_id"] for row in two] == [f"{channel}-2", f"{channel}-3"]
    assert len(hw.topic(TOPIC, start="-1h", key=channel)) == COUNT
    nothing = hw.topic(TOPIC, start=datetime(2200, 1, 1, tzinfo=UTC))
    assert (len(nothing), nothing.arrow().schema) == (0, found.arrow().schema)


async def test_it_reads_where_a_loop_runs(hw, published):
    """A notebook runs its own loop: reading still works, batch by batch too, and may be stopped early."""
    assert len(hw.topic(TOPIC, key=published[0]["channel_id"])) == COUNT
    tables = hw.batches(TOPIC)
    assert next(tables).num_rows == 0
    assert next(tables).num_rows > 0
    tables.close()


def test_what_is_no_event_is_told_and_a_tombstone_is_empty(hw, stack):
    """Both are rows: the one with its reason and bytes, the other with nothing but what the log says."""
    key = uuid.uuid4().hex
    producer = Producer({"bootstrap.servers": stack.kafka})
    for value in (b"garbage", None):
        producer.produce("feeds.user-active", value, key, partition=3)
    assert producer.flush(30) == 0
    bad, gone = hw.topic("feeds.user-active", key=key).rows()
    assert (bad["user_id"], bad["_bytes"]) == (None, b"garbage")
    assert "magic byte" in bad["_undecodable"]
    assert (gone["user_id"], gone["_undecodable"], gone["_bytes"]) == (None, None, None)


def test_dead_letters_read_like_their_topic(hw, stack):
    """A dead-letter topic has the columns of the topic it stands beside."""
    producer = Producer({"bootstrap.servers": stack.kafka})
    producer.produce("feeds.user-active.dlq", b"x", "k", headers=[("dlq_reason", b"not_avro")])
    assert producer.flush(30) == 0
    row = hw.topic("feeds.user-active.dlq", key="k").rows()[-1]
    assert dict(row["_headers"]) == {"dlq_reason": "not_avro"}
    assert "user_id" in row


def test_bad_questions_are_refused(hw):
    """A missing offset, an invalid time, a condition that does not parse."""
    with pytest.raises(InvalidSelectionError, match=r"partition \d holds 0 to"):
        hw.topic(TOPIC, start=10**12)
    with pytest.raises(InvalidSelectionError, match="yesterday"):
        hw.topic(TOPIC, start="yesterday")
    with pytest.raises(WhereError):
        hw.topic(TOPIC, where="value.channel_id ==")


def test_parts_that_are_away_are_said(stack, tmp_path, monkeypatch):
    """A broker or a registry that does not answer is an error that says so, in bounded time."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnavailableError, match="Kafka does not answer"):
        Client(kafka="127.0.0.1:1", schema_registry=stack.schema_registry).topic(TOPIC)
    with pytest.raises(UnavailableError, match="registry does not answer"):
        Client(kafka=stack.kafka, schema_registry=NOWHERE).topic(TOPIC)
