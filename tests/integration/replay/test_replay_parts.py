"""`highwater replay` by several processes: the same file as by one, and one clean end after any failure of one."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from highwater.schemas.avro_files import schema_text
from highwater.schemas.topics import TOPICS
from tests import ROOT
from tests.integration.connecting import fresh, send
from tests.unit.replay.making import encoded

PROGRAM = [sys.executable, "-m", "tests.integration.replay.in_parts", "replay"]
ALONE = [sys.executable, "-m", "highwater.api.cli.main", "replay"]
TOPIC = "feeds.insight-retracted"
LARGE = "jobs.role-changed"


def schema_id(stack: Any, topic: str) -> int:
    """The registered schema of a topic."""
    with contextlib.closing(SchemaRegistryClient({"url": stack.schema_registry})) as client:
        return int(client.get_latest_version(TOPICS[topic].subject).schema_id)


def filled(stack: Any, topic: str, texts: Sequence[str], **config: Any) -> str:
    """Events in every partition, of one key that no other test has."""
    mark, schema = fresh("parts"), schema_text(TOPICS[topic].schema)
    number, first = schema_id(stack, topic), json.loads(schema)["fields"][0]["name"]
    events = [{"insight_id": "", "channel_id": mark, "user_id": "", "role": "", "ts": 5} | {first: t} for t in texts]
    values = [encoded(event, schema, number) for event in events]
    places = [i % TOPICS[topic].partitions for i in range(len(values))]
    send(stack.kafka, topic, [(mark, value, [], p) for value, p in zip(values, places, strict=True)], **config)
    return mark


@pytest.fixture(scope="module")
def mark(stack) -> str:
    """The key of 3,000 events, with a tombstone and garbage among them."""
    found = filled(stack, TOPIC, [f'{i} "q"\n🌊' for i in range(3_000)])
    send(stack.kafka, TOPIC, [(found, None, [], 1), (found, b"garbage", [("n", b"1")], 2)])
    return found


@pytest.fixture
def environment(environment: dict[str, str]) -> dict[str, str]:
    """For a command whose processes import the tests."""
    return {**environment, "PYTHONPATH": str(ROOT)}


def run(program: list[str], environment: dict[str, str], *arguments: str, status: int = 0) -> Any:
    """The command, run to its end with the expected status."""
    done = subprocess.run(
        [*program, *arguments], env=environment, capture_output=True, timeout=120, check=False, cwd=ROOT
    )
    assert done.returncode == status, done.stderr.decode()
    return done


@pytest.mark.parametrize("condition", [None, "value == null || !value.insight_id.startsWith('1')", "false"])
def test_several_processes_write_what_one_writes(environment, mark, condition: str | None, tmp_path):
    """JSON lines, CSV and Parquet hold the same records, in order in each partition, and the same is counted."""
    chosen = ("--key", mark, *(() if condition is None else ("--where", condition)), "--json", "-o")
    rows: dict[str, list[Any]] = {}
    for program, name in ((ALONE, "alone"), (PROGRAM, "parts")):
        told = []
        for kind in ("jsonl", "csv", "parquet"):
            done = run(program, environment, TOPIC, *chosen, str(tmp_path / f"{name}.{kind}"))
            told.append({**json.loads(done.stdout), "to": ""})
        assert told[0] == told[1] == told[2]
        rows[f"{name} told"] = told[:1]
        rows[f"{name} lines"] = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_bytes().splitlines()]
        with (tmp_path / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows[f"{name} cells"] = list(csv.DictReader(file))
        rows[f"{name} rows"] = pq.read_table(tmp_path / f"{name}.parquet").to_pylist()
    for kind in ("told", "lines", "cells", "rows"):
        alone, parts = rows[f"alone {kind}"], rows[f"parts {kind}"]
        assert len(alone) == len(parts)
        for partition in range(TOPICS[TOPIC].partitions):
            assert of(partition, alone) == of(partition, parts)
    assert len(rows["parts lines"]) == len(rows["parts rows"]) == rows["parts told"][0]["written"]
    assert condition is not None or rows["parts told"][0]["written"] == 3_002


def of(partition: int, rows: list[Any]) -> list[Any]:
    """The rows of a partition in their order; for rows without a partition all of them."""
    return [row for row in rows if int(row.get("partition", partition)) == partition]


def begun(environment: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    """A replay whose processes send everything, and take their time before they say so."""
    slow = {**environment, "HW_SLOW_PART": "1"}
    return subprocess.Popen([*PROGRAM, *arguments], env=slow, stderr=subprocess.PIPE, cwd=ROOT)


def children_of(process: subprocess.Popen[bytes], folder: Path) -> list[psutil.Process]:
    """The two processes, once something of the file is there."""
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in folder.glob(".o.*.partial")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr
        time.sleep(0.02)
    command = psutil.Process(process.pid)
    # Beside them is the one that watches for SIGTERM, a fork of the command.
    found = [one for one in command.children() if one.cmdline() != command.cmdline()]
    assert len(found) == 2
    return found


def all_gone(processes: list[psutil.Process]) -> bool:
    """Whether none of them runs any more, within a while."""
    return not psutil.wait_procs(processes, timeout=20)[1]


@pytest.mark.parametrize("which", [0, 1])
def test_a_process_that_is_killed_is_an_error_and_leaves_no_file(environment, mark, which: int, tmp_path):
    """Status 1, one line that says so, neither the file nor a part of it, and the other process is ended."""
    process = begun(environment, TOPIC, "-o", str(tmp_path / "o.csv"))
    children = children_of(process, tmp_path)
    children[which].kill()
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 1, said
    assert said == "highwater: a process of the replay ended before its part was whole (SIGKILL)\n"
    assert [path.name for path in tmp_path.iterdir() if path.name != "data"] == []
    assert all_gone(children)
    assert mark


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_replay_ends_its_processes(environment, mark, sent: signal.Signals, tmp_path):
    """Ctrl-C or SIGTERM: status 130 or 143, one line, no file, no process."""
    process = begun(environment, TOPIC, "-o", str(tmp_path / "o.csv"))
    children = children_of(process, tmp_path)
    process.send_signal(sent)
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 128 + sent, said
    assert said.count("\n") == 1
    assert "interrupted" in said
    assert [path.name for path in tmp_path.iterdir() if path.name != "data"] == []
    assert all_gone(children)
    assert mark


def test_processes_end_when_their_parent_is_killed(environment, mark, tmp_path):
    """No parent is left to read."""
    process = begun(environment, TOPIC, "-o", str(tmp_path / "o.csv"))
    children = children_of(process, tmp_path)
    process.kill()
    process.communicate(timeout=60)
    assert all_gone(children)
    assert mark


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [("| head -n 1", 0, b""), ("> /dev/full", 1, b"highwater: [Errno 28] No space left on device\n")],
)
def test_a_reader_that_leaves_and_a_full_disk(environment, mark, more: str, status: int, said: bytes):
    """Exactly the lines for head; one line about the disk."""
    command = f"{' '.join(PROGRAM)} {TOPIC} {more}"
    done = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, timeout=60, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (status, said)
    assert done.stdout.count(b"\n") == (status == 0)
    assert mark


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("value.insight_id ==", "it ends too early"),
        ("value.nothing == 1", "no field 'nothing'"),
        ("size(key)", "not true"),
    ],
)
def test_a_condition_at_fault_is_shown_with_a_caret(environment, mark, condition: str, said: str, tmp_path):
    """It is read in the processes, and said as if there were one."""
    shown = []
    for program in (ALONE, PROGRAM):
        arguments = ("--key", mark, "--where", condition, "-o", str(tmp_path / "o.csv"))
        shown.append(run(program, environment, TOPIC, *arguments, status=2).stderr.decode())
    assert shown[0] == shown[1]
    text, caret, line = shown[0].splitlines()
    assert (text, caret.strip()) == (condition, "^")
    assert said in line
    assert [path.name for path in tmp_path.iterdir() if path.name != "data"] == []


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_memory_of_all_processes_together_is_bounded(environment, stack, codec: str, kind: str, tmp_path):
    """300 texts of 1 MB, a hundredth of that when compressed: all processes together stay within the documented limit.

    JSON lines and CSV take 187 MB at most, of which 60 are libraries; Parquet takes 241, since its libraries are larger.
    """
    one = os.urandom(5_000).hex() * 100
    key = filled(stack, LARGE, [f"{i}{one}" for i in range(300)], **{"compression.type": codec, "linger.ms": 50})
    path = tmp_path / "o"
    process = subprocess.Popen(
        [*PROGRAM, LARGE, "--key", key, "--format", kind, "-o", str(path)], env=environment, cwd=ROOT
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory_of(process.pid))
        time.sleep(0.005)
    assert process.returncode == 0
    assert path.stat().st_size > 0
    assert peak < (300 if kind == "parquet" else 240) * 2**20, f"{peak / 2**20:.0f} MB"


def memory_of(pid: int) -> int:
    """The resident memory of a process and its children; files, the libraries, count once, as they are shared."""
    own, shared = 0, 0
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for one in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                found = one.memory_info()
                own += found.rss - found.shared
                shared = max(shared, found.shared)
    return own + shared
