"""`highwater replay` against a real broker and registry: everything that was published, and nothing half done."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import psutil
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from highwater.schemas.avro_files import schema_text
from highwater.schemas.envelope import ms_from_iso
from highwater.schemas.topics import TOPICS
from tests import ROOT
from tests.integration.commands import PROGRAM, run_for_bytes
from tests.integration.connecting import fresh, send
from tests.unit.replay.making import changed, encoded, insight

INSIGHTS = "feeds.insight-ingested"
ACTIVE = "feeds.user-active"


def run(environment: dict[str, str], *arguments: str, stdin: bytes = b"", status: int = 0) -> Any:
    """The command, run to its end with the expected status."""
    done = run_for_bytes(environment, *arguments, stdin=stdin)
    assert done.returncode == status, done.stderr.decode()
    return done


def replayed(environment: dict[str, str], topic: str, *arguments: str) -> list[dict[str, Any]]:
    """The lines of a replay to standard output."""
    return [json.loads(line) for line in run(environment, "replay", topic, *arguments).stdout.splitlines()]


def one_line(done: Any) -> str:
    """The text on standard error, if it is one line."""
    said = done.stderr.decode()
    assert said.count("\n") == 1, said
    return str(said)


def place_of(line: dict[str, Any]) -> tuple[int, int]:
    """Where a record is in its topic."""
    return line["partition"], line["offset"]


def arrived_ms(line: dict[str, Any]) -> int:
    """When a record arrived. Its text does not sort by time: a whole second has no milliseconds, and `.` sorts before `Z`."""
    return ms_from_iso(line["timestamp"])


def published(environment: dict[str, str], count: int) -> tuple[str, dict[str, dict[str, Any]]]:
    """Fresh insights by their id, all of one channel-prefix that no other test has."""
    mark = fresh("replay")
    rows = {
        f"{mark}-{i}": {
            "insight_id": f"{mark}-{i}",
            # By chance one of 8 partitions has none of 400 keys once in 10^22 runs, of 40 keys once in 26.
            "channel_id": f"{mark}-{i % 400}",
            "ts": i,
            "text": f'"{i}"\n🌊' * (i % 3),
        }
        for i in range(count)
    }
    lines = "".join(json.dumps(row) + "\n" for row in rows.values()).encode()
    run(environment, "publish", INSIGHTS, "-", stdin=gzip.compress(lines) if count > 1_000 else lines)
    return mark, rows


@pytest.mark.skipif(shutil.which("kcat") is None, reason="only kcat writes a header name that is no text")
@pytest.mark.parametrize("more", [(), ("--limit", "9")])
def test_a_header_name_that_is_no_text(environment, stack, more):
    """A note replaces the record's headers, in a batch and record by record; the records around it have theirs."""
    key = fresh("names")
    kcat = ["kcat", "-b", stack.kafka, "-P", "-t", "feeds.insight-retracted", "-p", "2", "-k", key]
    for name in (b"before", b"\xff\xfe", b"\xff", b"after"):
        subprocess.run([*kcat, "-H", name + b"=x"], input=b"bad", timeout=20, check=True)
    lines = replayed(environment, "feeds.insight-retracted", "--key", key, *more)
    unreadable = {"dlq_headers_unreadable": ""}
    assert [line["headers"] for line in lines] == [{"before": "x"}, unreadable, unreadable, {"after": "x"}]


def test_every_format_gives_back_what_was_published(environment, tmp_path):
    """8,000 events over all partitions: JSON lines, Parquet by DuckDB, CSV and Avro hold the same, and all of it."""
    mark, rows = published(environment, 8_000)
    condition = f"value != null && value.channel_id.startsWith('{mark}')"
    files = {kind: tmp_path / f"out.{kind}" for kind in ("jsonl", "parquet", "csv", "avro")}
    for path in files.values():
        told = json.loads(run(environment, "replay", INSIGHTS, "--where", condition, "-o", str(path), "--json").stdout)
        assert told["written"] == 8_000
    lines = [json.loads(line) for line in files["jsonl"].read_bytes().splitlines()]
    assert {line["value"]["insight_id"]: line["value"]["text"] for line in lines} == {
        i: r["text"] for i, r in rows.items()
    }
    assert len({(line["partition"], line["offset"]) for line in lines}) == 8_000
    assert len({line["partition"] for line in lines}) == TOPICS[INSIGHTS].partitions
    for partition in range(TOPICS[INSIGHTS].partitions):
        offsets = [line["offset"] for line in lines if line["partition"] == partition]
        assert offsets == sorted(offsets)

    def told_of(one: dict[str, Any]) -> tuple[Any, ...]:
        return (one["partition"], one["offset"], one["key"], one["value"]["insight_id"], one["value"]["text"])

    expected = sorted(map(told_of, lines))
    assert expected == sorted(
        duckdb.sql(
            f"SELECT partition, \"offset\", key, value.insight_id, value.text FROM '{files['parquet']}'"
        ).fetchall()
    )
    assert expected == sorted(map(told_of, fastavro.reader(io.BytesIO(files["avro"].read_bytes()))))
    cells = csv.DictReader(io.StringIO(files["csv"].read_text(encoding="utf-8"), newline=""))
    assert expected == sorted(
        (int(r["partition"]), int(r["offset"]), r["key"], r["value.insight_id"], r["value.text"]) for r in cells
    )
    assert lines[0]["headers"]["ce_source"] == "/cli/publish"
    assert pq.read_metadata(files["parquet"]).num_rows == 8_000


def test_from_and_to_mean_offsets_times_and_ages(environment):
    """A span by position is exactly it; by time everything that arrived then or later; both ends hold."""
    _, before = published(environment, 10)
    lines = replayed(environment, INSIGHTS)
    ours = [line for line in lines if line["value"] and line["value"]["insight_id"] in before]
    partition = ours[0]["partition"]
    low, high = ours[0]["offset"], ours[0]["offset"] + 1
    found = replayed(environment, INSIGHTS, "--from", f"{partition}/{low}", "--to", f"{partition}/{high}")
    assert found == [ours[0]]
    moment = max(lines, key=arrived_ms)["timestamp"]
    time.sleep(0.01)  # another millisecond, so that the next records are later
    _, later = published(environment, 10)
    after = replayed(environment, INSIGHTS, "--from", moment)
    assert {line["value"]["insight_id"] for line in after} >= set(later)
    assert all(arrived_ms(line) >= ms_from_iso(moment) for line in after)
    until = replayed(environment, INSIGHTS, "--to", moment)
    assert len(until) + len(after) == len(replayed(environment, INSIGHTS))
    everything = replayed(environment, INSIGHTS)
    for hour_ago in (("--from", "1h"), ("--from", "-1h"), ("--from=-1h",)):
        assert sorted(map(place_of, replayed(environment, INSIGHTS, *hour_ago))) == sorted(map(place_of, everything))
    assert replayed(environment, INSIGHTS, "--to", "-1h") == []
    assert replayed(environment, INSIGHTS, "--from", "latest") == []


def test_the_records_of_a_key_are_found_in_every_partition(environment, stack):
    """This holds for any producer and partitioner; records of other keys and without a key are left out."""
    key, value = fresh("key"), encoded(insight(), schema_text(TOPICS[INSIGHTS].schema), 1)
    wanted = [(key, value, [], partition) for partition in range(TOPICS[INSIGHTS].partitions)]
    send(stack.kafka, INSIGHTS, [*wanted, (f"{key}x", value), (key[:-1], value), (None, value), (key, None)])
    lines = replayed(environment, INSIGHTS, "--key", key)
    assert {line["key"] for line in lines} == {key}
    assert sorted(line["partition"] for line in lines if line["value"]) == list(range(TOPICS[INSIGHTS].partitions))
    assert len(lines) == len(wanted) + 1
    assert replayed(environment, INSIGHTS, "--key", key, "--where", "value == null") == [
        line for line in lines if line["value"] is None
    ]
    assert replayed(environment, INSIGHTS, "--key", fresh("nobody")) == []


def test_a_limit_gives_the_first_that_arrived(environment, stack, tmp_path):
    """Over all partitions, of those that match; a file, a pipe and another topic alike; more than there are is all."""
    mark, _ = published(environment, 60)
    condition = ("--where", f"value != null && value.channel_id.startsWith('{mark}')")
    everything = sorted(replayed(environment, INSIGHTS, *condition), key=lambda o: (arrived_ms(o), *place_of(o)))
    assert replayed(environment, INSIGHTS, *condition, "--limit", "7") == everything[:7]
    assert replayed(environment, INSIGHTS, *condition, "--limit", "60") == everything
    assert replayed(environment, INSIGHTS, *condition, "--limit", "9999") == everything
    key = everything[0]["key"]
    assert replayed(environment, INSIGHTS, "--key", key, "--limit", "1") == everything[:1]
    path = tmp_path / "o.parquet"
    told = run(environment, "replay", INSIGHTS, *condition, "--limit", "7", "-o", str(path), "--json").stdout
    assert json.loads(told)["written"] == 7
    assert pq.read_table(path)["offset"].to_pylist() == [line["offset"] for line in everything[:7]]
    scratch = fresh("scratch")
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([NewTopic(scratch, 1, 1)])[scratch].result(10)
    run(environment, "replay", INSIGHTS, *condition, "--limit", "7", "--into", scratch)
    origins = [dict(copy.headers())["replay_origin"].decode() for copy in read_all(stack.kafka, scratch)]
    assert origins == [f"{INSIGHTS}/{line['partition']}/{line['offset']}" for line in everything[:7]]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--from", "-5x"), 2, "'-5x' is not one of: an offset"),
        (("--to=-5",), 2, "'-5' is not one of: an offset"),
        (("--limit", "0"), 2, "0 is not in the range x>=1"),
        (("--limit", "-3"), 2, "-3 is not in the range x>=1"),
        (("--limit", "many"), 2, "'many' is not a valid integer"),
        (("--limit",), 2, "Option '--limit' requires an argument"),
        (("--key",), 2, "Option '--key' requires an argument"),
        (("--from", "yesterday"), 2, "'yesterday' is not one of: an offset"),
        (("--from", "0/99999999"), 1, "offset 99999999 is not in feeds.insight-ingested: partition 0 "),
        (("--to", "99/0"), 1, "no partition 99: partition 0 "),
        (("--format", "xml"), 2, "'xml' is not one of"),
        (("--into", "x", "--output", "y"), 2, "--into excludes"),
        (("--into", "nowhere"), 2, "no topic 'nowhere'"),
        (("--into", "feeds.rebuild-demanded"), 1, "--i-know"),
        (("--output", "/nowhere/at/all"), 1, "/nowhere/at/all was not written: No such file"),
        (("--output", "/dev/full"), 1, "/dev/full was not written: No space left on device"),
    ],
)
def test_what_cannot_be_is_one_line(environment, arguments: tuple[str, ...], status: int, said: str):
    """Wrong times, offsets, formats, targets and files are refused in a line that helps."""
    published(environment, 3)
    assert said in one_line(run(environment, "replay", INSIGHTS, *arguments, status=status))


def test_a_condition_that_does_not_parse_has_a_caret_under_the_spot(environment, tmp_path):
    """Nothing is read or written, and the reader sees where."""
    done = run(environment, "replay", INSIGHTS, "--where", "value.channel_id ==", "-o", str(tmp_path / "o"), status=2)
    text, caret, line = done.stderr.decode().splitlines()
    assert (text, caret) == ("value.channel_id ==", " " * 19 + "^")
    assert "it ends too early" in line
    assert list(tmp_path.glob("o*")) == []


def test_three_versions_of_a_schema_tombstones_and_garbage(environment, stack, tmp_path):
    """Each event is read as it was written; an invalid event is included with its bytes, in both kinds of file."""
    own = schema_text(TOPICS["feeds.insight-retracted"].schema)
    subject = TOPICS["feeds.insight-retracted"].subject
    texts = [own]
    for name in ("mood", "depth"):
        texts.append(changed(texts[-1], **{name: {"type": ["null", "string"], "default": None}}))
    with contextlib.closing(SchemaRegistryClient({"url": stack.schema_registry})) as client:
        ids = [client.register_schema(subject, Schema(text, "AVRO")) for text in texts]
    mark = fresh("versions")
    event = {field["name"]: None for field in json.loads(own)["fields"]}
    event |= {"insight_id": mark, "channel_id": mark, "ts": 5}
    values = [
        encoded({**event, "mood": "m", "depth": "d"}, text, number) for text, number in zip(texts, ids, strict=True)
    ]
    send(stack.kafka, "feeds.insight-retracted", [(mark, value) for value in [*values, None, b"garbage"]])
    path = tmp_path / "o.parquet"
    for arguments in (("-o", str(path)), ()):
        done = run(environment, "replay", "feeds.insight-retracted", "--where", f"key == '{mark}'", *arguments)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(v["value"]["mood"], v["value"]["depth"]) for v in found[:3]] == [(None, None), ("m", None), ("m", "d")]
    assert [line["value"] for line in found[3:]] == [None, None]
    assert ["undecodable" in line for line in found] == [False, False, False, False, True]
    assert "1 value could not be decoded" in done.stderr.decode()
    table = pq.read_table(path).to_pylist()
    assert [row["value"] and row["value"]["depth"] for row in table] == [None, None, "d", None, None]
    assert [row["bytes"] for row in table] == [None, None, None, None, b"garbage"]


def test_the_offsets_of_live_groups_stay_where_they_are(environment, stack):
    """A replay joins no group and commits nothing, not even under its own name."""
    published(environment, 5)
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    group = fresh("live")
    consumer = Consumer({"bootstrap.servers": stack.kafka, "group.id": group})
    consumer.commit(offsets=[TopicPartition(INSIGHTS, 0, 1)], asynchronous=False)
    consumer.close()

    def state() -> Any:
        groups = sorted(one.group_id for one in admin.list_consumer_groups().result(10).valid)
        told = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(10)
        return groups, [(place.partition, place.offset) for place in told.topic_partitions]

    before = state()
    replayed(environment, INSIGHTS)
    assert state() == before
    assert before[1] == [(0, 1)]


def test_into_another_topic_with_their_times(environment, stack):
    """Copies keep key, bytes and partition and tell position and time of the original; at 10x they keep their distance."""
    mark, rows = published(environment, 20)
    scratch = fresh("scratch")
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([NewTopic(scratch, TOPICS[INSIGHTS].partitions, 1)])[scratch].result(10)
    condition = f"value != null && value.channel_id.startsWith('{mark}')"
    originals = {line["value"]["insight_id"]: line for line in replayed(environment, INSIGHTS, "--where", condition)}
    for speed in ("max", "10x"):
        done = run(environment, "replay", INSIGHTS, "--where", condition, "--into", scratch, "--speed", speed, "--json")
        assert json.loads(done.stdout)["written"] == len(rows)
    copies = read_all(stack.kafka, scratch)
    assert len(copies) == 2 * len(rows)
    by_origin: dict[str, int] = {}
    for copy in copies:
        headers = dict(copy.headers())
        origin = headers["replay_origin"].decode()
        by_origin[origin] = by_origin.get(origin, 0) + 1
        line = next(o for o in originals.values() if f"{o['topic']}/{o['partition']}/{o['offset']}" == origin)
        assert headers["replay_time"].decode() == line["timestamp"]
        assert (copy.key().decode(), copy.partition()) == (line["key"], line["partition"])
    assert set(by_origin.values()) == {2}


def test_a_file_is_published_in_another_installation(environment, tmp_path):
    """`publish` takes the file of `replay`: the same events of each key again, in the order in which they arrived."""
    mark, rows = published(environment, 40)
    condition = f"value != null && value.channel_id.startsWith('{mark}')"
    file = tmp_path / "insights.jsonl"
    many = ("--limit", "1000000000")
    assert run(environment, "replay", INSIGHTS, "--where", condition, *many, "--output", str(file)).returncode == 0
    done = run(environment, "publish", INSIGHTS, str(file), "--json")
    assert (done.returncode, json.loads(done.stdout)["published"]) == (0, len(rows)), done.stderr
    values = [line["value"] for line in replayed(environment, INSIGHTS, "--where", condition, *many)]
    by_channel = [(one["channel_id"], number, one) for number, one in enumerate(values)]
    before, again = (
        sorted(half, key=lambda one: one[:2]) for half in (by_channel[: len(rows)], by_channel[len(rows) :])
    )
    assert [one for *_, one in again] == [one for *_, one in before]


def test_at_1x_records_come_as_far_apart_as_they_did(environment, stack):
    """Over all partitions in the order of their arrival, and not faster."""
    mark = fresh("pace")
    for _ in range(3):
        send(stack.kafka, ACTIVE, [(f"{mark}-{i}", b"x") for i in range(5)])
        time.sleep(0.4)  # a distance in time is measured
    scratch = fresh("scratch")
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([NewTopic(scratch, 1, 1)])[scratch].result(10)
    condition = f"key != null && key.startsWith('{mark}')"
    run(environment, "replay", ACTIVE, "--from", "1m", "--where", condition, "--into", scratch, "--speed", "1x")
    copies = read_all(stack.kafka, scratch)
    times = [ms_from_iso(dict(copy.headers())["replay_time"].decode()) for copy in copies]
    arrivals = [copy.timestamp()[1] for copy in copies]
    assert len(copies) == 15
    assert times == sorted(times)
    assert arrivals[-1] - arrivals[0] >= 750


def read_all(kafka: str, topic: str) -> list[Any]:
    """Every record of a topic."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "look", "auto.offset.reset": "earliest"})
    found = []
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        wanted = sum(consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in partitions)
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        while len(found) < wanted:
            message = consumer.poll(10)
            assert message is not None
            found.append(message)
    finally:
        consumer.close()
    return found


def begun(environment: dict[str, str], *arguments: str, **more: Any) -> Any:
    """A replay at the speed of the past, so that it runs until it is ended."""
    return subprocess.Popen([*PROGRAM, "replay", *arguments], env=environment, stderr=subprocess.PIPE, **more)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_replay_leaves_no_file(environment, sent: signal.Signals, tmp_path):
    """Ctrl-C or SIGTERM in the middle of the writing: status 130 or 143, one line, and neither the file nor a part of it."""
    published(environment, 5_000)
    slow = Path(__file__).parent / "slow_disk.py"
    process = subprocess.Popen(
        [sys.executable, str(slow), "replay", INSIGHTS, "--output", str(tmp_path / "o.jsonl")],
        env=environment, stderr=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".o.jsonl.*.partial")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr
        time.sleep(0.02)
    process.send_signal(sent)
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 128 + sent, said
    assert said.count("\n") == 1
    assert "interrupted" in said
    assert [path.name for path in tmp_path.iterdir() if path.name != "data"] == []


def test_a_reader_that_leaves_ends_a_replay_quietly(environment):
    """`highwater replay … | head` prints what head wanted and nothing else."""
    published(environment, 3_000)
    command = f"{sys.executable} -m highwater.api.cli.main replay {INSIGHTS} | head -n 1"
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, timeout=60, check=False)
    assert done.stderr == b""
    assert json.loads(done.stdout)["topic"] == INSIGHTS
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m highwater.api.cli.main replay {INSIGHTS} > /dev/full"],
        env=environment, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "No space left" in one_line(done)


def test_the_end_is_fixed_at_the_start(environment, stack):
    """A topic copied into itself ends: what the replay adds is not read by it."""
    topic = "league.comment-posted"
    send(stack.kafka, topic, [("k", b"x")] * 50)
    held = len(read_all(stack.kafka, topic))
    done = run(environment, "replay", topic, "--into", topic, "--json")
    assert json.loads(done.stdout)["written"] == held
    assert len(read_all(stack.kafka, topic)) == 2 * held


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "avro", "csv"])
def test_memory_does_not_grow_with_the_topic(environment, stack, kind: str, tmp_path):
    """200 MB of texts of 1 MB pass through less than 300 MB of memory, of which the libraries take half."""
    topic = "league.ad-changed"
    if not read_all(stack.kafka, topic):
        text = os.urandom(500_000).hex()  # which lz4 makes no smaller
        value = encoded(insight(text=text), schema_text(TOPICS[INSIGHTS].schema), 1)
        for _ in range(20):
            send(stack.kafka, topic, [(uuid.uuid4().hex, value)] * 10, **{"compression.type": "lz4"})
    process = begun(environment, topic, "--format", kind, "--output", str(tmp_path / "o"))
    peak = 0
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            peak = max(peak, watched.memory_info().rss)
        except psutil.NoSuchProcess:
            break
        time.sleep(0.005)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert (tmp_path / "o").exists()
    assert peak < 300 * 2**20, f"{peak / 2**20:.0f} MB"
    assert (tmp_path / "o").stat().st_size > 0
