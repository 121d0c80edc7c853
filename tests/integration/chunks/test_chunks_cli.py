"""`highwater chunks` against a running API, as a user runs it: requests, output, exit status."""

from __future__ import annotations

import asyncio
import gzip
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from highwater.schemas.codec import Codec
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.positions import parse_position
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import ProductClock
from tests.integration import commands
from tests.integration.api_server import NOW
from tests.integration.chunks.making import FINISHED, SUBMITTED, bump, store_chunk, store_ingest, store_namespace
from tests.integration.records import record_at


async def run(environment: dict[str, str], *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """The command's exit status and what it printed."""
    done = await asyncio.to_thread(commands.run, environment, "chunks", *arguments, stdin=stdin)
    return done.returncode, done.stdout, done.stderr


def lines(documents: Sequence[dict[str, Any]]) -> str:
    """JSON lines."""
    return "".join(json.dumps(document) + "\n" for document in documents)


def before(stack, codec: Codec, position: str, count: int) -> list[dict[str, Any]]:
    """The events that end at a position."""
    topic, partition, last = parse_position(position)
    records = [record_at(stack, f"{topic}/{partition}/{offset}") for offset in range(last + 1 - count, last + 1)]
    return [codec.decode(topic, record.value()) for record in records]


async def test_a_file_is_sent(stack, api_environment, codec, tmp_path: Path):
    """Chunks without a number get their place, a source that is long goes in several requests, and its end counts all of it."""
    source = uuid.uuid4().hex
    path = tmp_path / "chunks.jsonl.gz"
    path.write_bytes(gzip.compress(lines([{"content": f"chunk {number}"} for number in range(1_203)]).encode()))
    named = ("--ns", "docs", "--slot", "main", "--source", source)
    code, out, err = await run(api_environment, "ingest", str(path), *named, "--full", "--no-wait", "--json")
    assert (code, err) == (0, "")
    taken = json.loads(out)
    by_topic = {position.split("/")[0]: position for position in taken["positions"]}
    end = before(stack, codec, by_topic[FINISHED], 1)[0]
    assert (end["ingest_id"], end["expected_count"], end["full"], end["truncated"]) == (
        taken["ingest_id"],
        1_203,
        True,
        False,
    )
    sent = before(stack, codec, by_topic[SUBMITTED], 1_203)
    assert [(one["source_id"], one["chunk_no"], one["content"]) for one in sent] == [
        (source, number, f"chunk {number}") for number in range(1_203)
    ]
    assert {one["ingest_id"] for one in sent} == {taken["ingest_id"]}


async def test_a_command_waits_for_the_end(stack, seeds, api_environment):
    """It prints the outcome of the ingest; a refused chunk gives exit status 1."""
    ingest_id = str(uuid.uuid4())
    rows = [{"ns": "docs", "slot": "main", "source_id": source, "content": "a", "chunk_no": 4} for source in ("a", "b")]
    sending = asyncio.create_task(
        run(api_environment, "ingest", "-", "--ingest-id", ingest_id, "--json", stdin=lines(rows))
    )
    await store_ingest(seeds, ingest_id, "a", inserted=1, status="complete", decided_at=NOW)
    topics = [
        f"{topic}/{partition}/{2**40}"
        for topic in (SUBMITTED, FINISHED)
        for partition in range(TOPICS[topic].partitions)
    ]
    for position in topics:
        await seeds.account_for(position)
    assert not sending.done()
    await store_ingest(seeds, ingest_id, "b", failures=1, status="failed", decided_at=NOW)
    code, out, err = await sending
    found = json.loads(out)
    assert (code, err, found["status"], found["sources_total"]) == (1, "", "failed", 2)
    code, out, err = await run(api_environment, "show", ingest_id)
    became = f"{ingest_id} failed: 1 inserted, 0 updated, 0 unchanged, 1 failures, 0 orphaned"
    assert (code, out.splitlines()[0].partition(" (")[0]) == (0, became)
    assert "first docs / main / b: 1 of 1 chunks were refused" in out.splitlines()[0]
    await seeds.run("DELETE FROM positions")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}\n", "line 1 has no ns"),
        ("[1]\n", "line 1 is not a JSON object"),
        ('{"content": "a", "ns": "n", "slot": "s", "source_id": "i"}\nnonsense\n', "line 2 is not JSON"),
        ('{"content": "a", "ns": "n", "slot": "s", "source_id": "i", "chunk_no": "x"}\n', "line 1: field 'chunk_no'"),
        ('{"ns": "n", "slot": "s", "source_id": "i"}\n', "line 1: field 'content' is missing"),
        ('{"ns": "n", "slot": "s", "source_id": "i", "content": " "}\n', "line 1: content is empty"),
    ],
)
async def test_a_bad_line_is_named(api_environment, text, says):
    """Exit status 1 and one line; no source is finished."""
    code, out, err = await run(api_environment, "ingest", "-", stdin=text)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert says in err


async def test_a_search_and_a_lifecycle_are_shown(seeds, api_environment):
    """As tables, and as JSON; what a terminal would obey is escaped. Without a vector to compare it says that words decide."""
    ns = f"ns-{uuid.uuid4().hex[:8]}"
    await store_namespace(seeds, ns)
    await store_chunk(seeds, ns, 7, content="Brokers\x1b[2J stop", title="About")
    await bump(seeds, ns)
    code, out, err = await run(
        api_environment, "search", "brokers", "--ns", ns, "--as-of", iso_from_ms(ProductClock()())
    )
    assert (code, err.count("\n"), "words decide" in err) == (0, 1, True)
    code, _, err = await run(api_environment, "search", "brokers", "--ns", ns, "--as-of", "2026-11-20T11:00:00Z")
    assert (code, "are the current texts" in err) == (0, True)
    assert out.splitlines()[1].split()[-6:] == ["warm", "main|readme", "7", "About", "Brokers\\x1b[2J", "stop"]
    code, out, _ = await run(
        api_environment, "search", "brokers", "--ns", ns, "--mode", "hybrid", "--source", "readme", "--json"
    )
    assert (code, [one["chunk_no"] for one in json.loads(out)["results"]]) == (0, [7])
    code, out, _ = await run(api_environment, "lifecycle", ns)
    assert (code, out.splitlines()[1].split()[:5]) == (0, [ns, "1", "0", "0", "1"])
    code, out, _ = await run(api_environment, "lifecycle", "--json")
    assert ns in [one["ns"] for one in json.loads(out)["namespaces"]]
    code, _, err = await run(api_environment, "search", "why", "--ns", "a|b")
    assert (code, "ns" in err) == (2, True)
    code, _, err = await run(api_environment, "show", "nothing")
    assert (code, "404" in err) == (1, True)


async def test_what_was_refused_is_shown(seeds, api_environment):
    """Beside the table of sources, one line each."""
    ingest_id = str(uuid.uuid4())
    await store_ingest(seeds, ingest_id, "a", failures=1)
    refused = {
        "ingest_id": ingest_id,
        "ns": "docs",
        "slot": "main",
        "source_id": "a",
        "chunk_no": 3,
        "content_hash": "h",
    }
    await seeds.insert("chunk_failures", **refused, reason="repeated", detail="it differs", position="p", failed_at=NOW)
    code, out, err = await run(api_environment, "show", ingest_id)
    assert (code, "running" in out, err) == (0, True, "docs|main|a 3: repeated: it differs\n")


async def test_nothing_can_be_asked_of_an_api_that_is_away(api_environment):
    """Exit status 1 and one line that says what to do."""
    code, _, err = await run({**api_environment, "HIGHWATER_PORT": "1"}, "lifecycle")
    assert (code, err.count("\n"), "highwater up" in err) == (1, 1, True)
