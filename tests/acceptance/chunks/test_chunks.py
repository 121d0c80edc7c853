"""Chunks from the outside: ingested repeatedly, cut off, overtaken, with killed workers; searched and quoted."""

from __future__ import annotations

import base64
import itertools
import json
import math
import os
import struct
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer

from highwater.schemas.envelope import iso_from_ms, ms_from_iso
from tests.product import Product

SUBMITTED, FINISHED = "chunks.chunk-submitted", "chunks.ingest-finished"
DAY_MS = 86_400_000
# How often a process is killed: each role at least once in the gate, ten times and more on demand (CONTRIBUTING.md).
KILLS = int(os.environ.get("HIGHWATER_KILLS", "4"))
CHUNKS_PER_PART = 4
TOPICS_OF_WORDS = ("broker", "planet", "recipe", "violin", "harbour", "glacier", "ledger", "orchard")


@pytest.fixture
def ns() -> str:
    """A namespace that no other test uses."""
    return f"ns-{uuid.uuid4().hex[:10]}"


def texts(count: int, *, seed: int = 0) -> list[str]:
    """Texts that differ, with words of their own."""
    words = np.random.default_rng(seed)
    return [
        f"Part {number} of edition {seed} tells how the {words.choice(TOPICS_OF_WORDS)} meets the "
        f"{words.choice(TOPICS_OF_WORDS)} in case {words.integers(10_000)}."
        for number in range(count)
    ]


def chunks_of(contents: Sequence[str], *, first: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Contents as chunks, numbered in order."""
    return [{"chunk_no": first + place, "content": content, **more} for place, content in enumerate(contents)]


def submit(
    product: Product, ns: str, chunks: Sequence[dict[str, Any]], *, source: str = "s", **more: Any
) -> dict[str, Any]:
    """POST /api/chunks/ingest; what it answered."""
    body = {"ns": ns, "slot": "main", "source_id": source, "chunks": list(chunks), **more}
    answer = product.http.post("/api/chunks/ingest", json=body)
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


def report(product: Product, taken: dict[str, Any]) -> dict[str, Any]:
    """The status of an ingest, once all accepted chunks are accounted for."""
    headers = {"X_Min_Position": ",".join(taken["positions"]), "X_Max_Wait_Ms": "30000"}
    answer = product.get(f"/api/chunks/ingest/{taken['ingest_id']}", **headers)
    assert answer.status_code in (200, 503), answer.text
    return dict(answer.json()) if answer.status_code == 200 else {"status": "running"}


def ended(product: Product, taken: dict[str, Any], seconds: float = 60) -> dict[str, Any]:
    """The status of an ingest once it has ended."""

    def look() -> dict[str, Any] | None:
        found = report(product, taken)
        return found if found["status"] != "running" else None

    found: dict[str, Any] = product.until(look, f"{taken['ingest_id']} has not ended", seconds)
    assert found["received"] == sum(found[name] for name in ("inserted", "updated", "unchanged", "failures"))
    return found


def ingest(product: Product, ns: str, chunks: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Ingest and wait for the end."""
    return ended(product, submit(product, ns, chunks, **more))


def counted(found: dict[str, Any]) -> dict[str, int]:
    """The counters that are not 0."""
    names = ("inserted", "updated", "unchanged", "failures", "orphaned")
    return {name: found[name] for name in names if found[name]}


def rows(product: Product, ns: str) -> list[dict[str, Any]]:
    """The chunks of a namespace, with everything that a write would change."""
    found = product.sql(
        "SELECT c.*, c.xmin::text AS version FROM chunks AS c WHERE ns = $1 ORDER BY source_id, chunk_no", ns
    )
    return [dict(row) for row in found]


def marked(product: Product, ns: str) -> list[int]:
    """The numbers of chunks that are to be deleted."""
    return [row["chunk_no"] for row in rows(product, ns) if row["to_delete"]]


def until_embedded(product: Product, ns: str, seconds: float = 90) -> list[dict[str, Any]]:
    """The chunks once all that are to stay have fresh vectors."""

    def look() -> list[dict[str, Any]] | None:
        found = rows(product, ns)
        is_done = all(row["to_delete"] or (row["embedding"] and not row["embedding_stale"]) for row in found)
        return found if found and is_done else None

    found: list[dict[str, Any]] = product.until(look, f"vectors of {ns} are missing", seconds)
    return found


def search(product: Product, ns: str, q: str = "", **more: Any) -> dict[str, Any]:
    """GET /api/chunks/search."""
    answer = product.http.get("/api/chunks/search", params={"ns": ns, "q": q, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


# -- ingesting again ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R3.3")
def test_the_same_again_writes_nothing(product: Product, ns: str) -> None:
    """An identical ingest leaves row versions, times and vectors as they are (R3.3); also one that brings other vectors."""
    contents = texts(10)
    assert counted(ingest(product, ns, chunks_of(contents, title="T"), full=True)) == {"inserted": 10}
    before = until_embedded(product, ns)
    for more in ({"full": True}, {"full": False}, {"full": True}):
        assert counted(ingest(product, ns, chunks_of(contents, title="T"), **more)) == {"unchanged": 10}
    vector = [1.0] + [0.0] * (before[0]["embedding"].count(",") or 0)
    again = ingest(product, ns, chunks_of(contents, title="T", embedding=vector), full=True)
    assert counted(again) == {"unchanged": 10}
    assert rows(product, ns) == before


@pytest.mark.requirement("R3.6")
def test_a_title_changes_without_a_new_vector(product: Product, ns: str) -> None:
    """Title and URL are not in the hash: they are updated, and the vector stays fresh or is rebuilt, never lost (R3.6)."""
    contents = texts(3)
    ingest(product, ns, chunks_of(contents))
    before = until_embedded(product, ns)
    changed = [*chunks_of(contents[:1], title="New", url="https://example.org/1"), *chunks_of(contents[1:], first=1)]
    assert counted(ingest(product, ns, changed)) == {"updated": 1, "unchanged": 2}
    after = rows(product, ns)
    assert (after[0]["title"], after[0]["url"], after[0]["embedding"]) == (
        "New", "https://example.org/1", before[0]["embedding"],
    )  # fmt: skip
    assert (after[0]["content_hash"], after[0]["created_at"]) == (before[0]["content_hash"], before[0]["created_at"])
    assert after[0]["updated_at"] > before[0]["updated_at"]
    assert after[1:] == before[1:]


@pytest.mark.requirement("R3.11")
def test_a_changed_text_gets_a_new_vector(product: Product, ns: str) -> None:
    """The old one stays until the new one is made; what the source did not change is untouched (R3.11)."""
    contents = texts(4)
    ingest(product, ns, chunks_of(contents), full=True)
    before = until_embedded(product, ns)
    contents[2] = "Something else altogether: nobody had written of typewriters."
    assert counted(ingest(product, ns, chunks_of(contents), full=True)) == {"updated": 1, "unchanged": 3}
    after = until_embedded(product, ns)
    assert [row["version"] == old["version"] for row, old in zip(after, before, strict=True)] == [
        True,
        True,
        False,
        True,
    ]
    assert after[2]["embedding"] != before[2]["embedding"]
    found = search(product, ns, "typewriters", limit=1)["results"]
    assert [(one["chunk_no"], one["content"]) for one in found] == [(2, contents[2])]


# -- orphans --------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R3.12", "R3.20")
def test_ten_chunks_that_become_six(product: Product, ns: str) -> None:
    """Exactly four are marked, in this source only, and no longer found; they return when they are sent again (R3.20)."""
    contents = texts(10)
    ingest(product, ns, chunks_of(contents), full=True)
    ingest(product, ns, chunks_of(contents), full=True, source="other")
    found = ingest(product, ns, chunks_of(contents[:6]), full=True)
    assert (found["status"], counted(found)) == ("complete", {"unchanged": 6, "orphaned": 4})
    assert marked(product, ns) == [6, 7, 8, 9]
    shown = search(product, ns, "part", limit=100)["results"]
    assert sorted((one["source_id"], one["chunk_no"]) for one in shown) == sorted(
        [("other", number) for number in range(10)] + [("s", number) for number in range(6)]
    )
    assert product.get(f"/api/chunks/lifecycle?ns={ns}").json()["to_delete"] == 4
    back = ingest(product, ns, chunks_of(contents), full=True)
    assert (counted(back), marked(product, ns)) == ({"unchanged": 6, "updated": 4}, [])


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"full": False}, "partial"),
        ({"full": True, "truncated": True}, "truncated"),
        ({"full": True, "window": {"source": "github", "page_from": 1, "page_to": 2, "truncated": True}}, "truncated"),
        ({"full": True, "chunks": []}, "empty"),
        ({"full": True, "bad": True}, "failed"),
    ],
    ids=["partial", "truncated", "window", "empty", "failed"],
)
def test_an_ingest_that_marks_nothing(product: Product, ns: str, more: dict[str, Any], status: str) -> None:
    """Six of ten: none of the others is marked when the run was partial, truncated, empty or had a bad chunk (R3.20)."""
    contents = texts(10)
    ingest(product, ns, chunks_of(contents), full=True)
    chunks = more.get("chunks", chunks_of(contents[:6]))
    if more.get("bad"):
        chunks = [*chunks, {"chunk_no": -1, "content": "before the first"}]
    said = {name: value for name, value in more.items() if name not in ("chunks", "bad")}
    found = ingest(product, ns, chunks, **said)
    assert (found["status"], found["orphaned"], marked(product, ns)) == (status, 0, [])
    assert found["window"] == more.get("window")


def test_an_ingest_that_is_cut_off(product: Product, ns: str) -> None:
    """Two chunks are missing: it continues, and marks nothing; when they arrive it ends, and marks the missing ones of the
    source.
    """
    contents = texts(10)
    ingest(product, ns, chunks_of(contents), full=True)
    cut = submit(product, ns, chunks_of(contents[:4]), full=True, expected_count=6)
    other = ingest(product, ns, chunks_of(contents[:1]), source="other")  # the decision is not merely late
    assert (other["status"], report(product, cut)["status"], marked(product, ns)) == ("partial", "running", [])
    rest = submit(product, ns, chunks_of(contents[4:6], first=4), ingest_id=cut["ingest_id"], finish=False)
    found = ended(product, rest)
    assert (found["status"], counted(found), marked(product, ns)) == (
        "complete", {"unchanged": 6, "orphaned": 4}, [6, 7, 8, 9],
    )  # fmt: skip


@pytest.mark.requirement("R3.20")
def test_an_emptied_source(product: Product, ns: str) -> None:
    """With force nothing is all there is (R3.20)."""
    ingest(product, ns, chunks_of(texts(3)), full=True)
    found = ingest(product, ns, [], full=True, force=True)
    assert (found["orphaned"], marked(product, ns)) == (3, [0, 1, 2])


# -- order ------------------------------------------------------------------------------------------------------------------


def test_an_end_before_its_data(product: Product, ns: str) -> None:
    """The end is read before any chunk: nothing is marked until all have come, then exactly what they do not name."""
    contents = texts(10)
    ingest(product, ns, chunks_of(contents), full=True)
    ingest_id = str(uuid.uuid4())
    first = submit(product, ns, [], ingest_id=ingest_id, full=True, expected_count=6)
    assert (report(product, first)["status"], marked(product, ns)) == ("running", [])
    for number in range(6):
        taken = submit(
            product, ns, chunks_of(contents[number : number + 1], first=number), ingest_id=ingest_id, finish=False
        )
    found = ended(product, taken)
    assert (found["status"], counted(found), marked(product, ns)) == (
        "complete", {"unchanged": 6, "orphaned": 4}, [6, 7, 8, 9],
    )  # fmt: skip


def test_two_ingests_of_one_source_at_once(product: Product, ns: str) -> None:
    """The one that began last wins: the other's later chunks are refused, and it marks nothing."""
    ingest(product, ns, chunks_of(texts(8, seed=1)), full=True)
    old, new = texts(6, seed=2), texts(5, seed=3)
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    submit(product, ns, chunks_of(old[:3]), ingest_id=first, finish=False)
    submit(product, ns, chunks_of(new[:2]), ingest_id=second, finish=False)
    end = {"full": True, "expected_count": 6}
    overtaken = submit(product, ns, chunks_of(old[3:], first=3), ingest_id=first, **end)
    winner = submit(product, ns, chunks_of(new[2:], first=2), ingest_id=second, full=True, expected_count=5)
    won, lost = ended(product, winner), ended(product, overtaken)
    assert (won["status"], won["orphaned"]) == ("complete", 3)
    assert (lost["status"], lost["orphaned"], lost["failures"]) == ("superseded", 0, 3)
    assert {one["reason"] for one in lost["failed"]} == {"superseded"}
    found = [(row["chunk_no"], row["content"], row["to_delete"]) for row in rows(product, ns)]
    before = texts(8, seed=1)
    assert found == [(n, new[n], False) for n in range(5)] + [(n, before[n], True) for n in range(5, 8)]


@pytest.mark.requirement("R3.1", "R3.5")
def test_many_ingests_of_one_source_at_once(product: Product, ns: str) -> None:
    """Eight clients send the same source: one row a chunk, no error, and nothing is marked that all of them named (R3.5)."""
    contents = texts(20)
    with ThreadPoolExecutor(8) as clients:
        taken = list(clients.map(lambda _: submit(product, ns, chunks_of(contents), full=True), range(8)))
    found = [ended(product, one) for one in taken]
    assert [(row["chunk_no"], row["content"], row["to_delete"]) for row in rows(product, ns)] == [
        (number, content, False) for number, content in enumerate(contents)
    ]
    assert {one["status"] for one in found} <= {"complete", "superseded"}
    assert "complete" in {one["status"] for one in found}
    assert (sum(one["inserted"] for one in found), sum(one["updated"] for one in found)) == (20, 0)


# -- bad input --------------------------------------------------------------------------------------------------------------


def vector(*numbers: float) -> bytes:
    """Numbers as a vector is sent."""
    return struct.pack(f"<{len(numbers)}f", *numbers)


def test_bad_chunks_are_counted_and_harm_no_other(product: Product, ns: str) -> None:
    """Each is named with its reason and dead-lettered; the good ones around it are stored, and the four counters add up."""
    good = chunks_of(texts(5), embedding=[0.6, 0.8, 0.0])
    bad: dict[int, dict[str, Any]] = {
        -1: {"content": "below 0"},
        100: {"content": "of another length", "embedding": [1.0, 2.0]},
        101: {"content": "not a number", "embedding": base64.b64encode(vector(1.0, math.nan, 0.0)).decode()},
        102: {"content": "endless", "embedding": base64.b64encode(vector(math.inf, 0.0, 0.0)).decode()},
        103: {"content": "cut through", "embedding": base64.b64encode(vector(1.0, 1.0, 0.0)[:-2]).decode()},
        104: {"content": "with a NUL\x00 in it"},
        105: {"content": "x" * (1024 * 1024 + 1)},
        106: {"content": "in no year", "published_at": 2**60},
        3: {"content": "repeated, and other"},
    }
    sent = [*good, *({"chunk_no": number, **chunk} for number, chunk in bad.items())]
    found = ingest(product, ns, sent, full=True)
    assert (found["status"], counted(found)) == ("failed", {"inserted": 5, "failures": len(bad)})
    reasons = {one["chunk_no"]: one["reason"] for one in found["failed"]}
    assert reasons == {
        -1: "bad_number",
        100: "wrong_dimensions",
        101: "bad_embedding",
        102: "bad_embedding",
        103: "bad_embedding",
        104: "control_character",
        105: "too_long",
        106: "time_out_of_range",
        3: "repeated",
    }
    assert [(row["chunk_no"], row["content"]) for row in rows(product, ns)] == list(enumerate(texts(5)))
    letters = [one.key().decode() for one in product.records(f"{SUBMITTED}.dlq")]
    assert [one.split("|")[0] for one in letters].count(ns) == len(bad)


@pytest.mark.parametrize(
    ("body", "field", "index"),
    [
        ({"ns": "a|b"}, "ns", None),
        ({"slot": ""}, "slot", None),
        ({"source_id": "a\x00"}, "source_id", None),
        ({"chunks": [{"chunk_no": 0, "content": "a"}, {"chunk_no": "1", "content": "b"}]}, "chunks.1.chunk_no", 1),
        ({"chunks": [{"chunk_no": 0}]}, "chunks.0.content", 0),
        ({"chunks": [{"chunk_no": 0, "content": "a", "embedding": ["x"]}]}, "chunks.0.embedding", 0),
        ({"chunks": [{"chunk_no": 2**63, "content": "a"}]}, "chunks.0.chunk_no", 0),
        ({"expected_count": -1}, "expected_count", None),
    ],
)
def test_what_is_no_ingest_is_refused(product: Product, ns: str, body: dict[str, Any], field: str, index: Any) -> None:
    """422 that names the field, and the chunk; nothing of it is taken."""
    whole = {"ns": ns, "slot": "main", "source_id": "s", "chunks": chunks_of(["a"]), **body}
    answer = product.http.post("/api/chunks/ingest", json=whole)
    assert (answer.status_code, answer.json()["field"], answer.json().get("index")) == (422, field, index), answer.text
    assert rows(product, ns) == []


def test_half_a_character_is_refused(product: Product, ns: str) -> None:
    """A lone surrogate has no UTF-8."""
    body = {"ns": ns, "slot": "main", "source_id": "s", "chunks": chunks_of(["half \ud83d"])}
    headers = {"content-type": "application/json"}
    answer = product.http.post("/api/chunks/ingest", content=json.dumps(body).encode(), headers=headers)
    assert (answer.status_code, answer.json()["field"]) == (422, "chunks.0.content")


def test_a_record_that_is_not_utf8(product: Product, ns: str) -> None:
    """It is dead-lettered, so its ingest is incomplete and marks nothing; the right chunk in its place ends it."""
    contents = texts(4)
    ingest(product, ns, chunks_of(contents), full=True)
    ingest_id, codec = str(uuid.uuid4()), product.codec()
    fields = {"title": None, "url": None, "embedding": None, "published_at": None}
    event = {
        "ns": ns,
        "slot": "main",
        "source_id": "s",
        "ingest_id": ingest_id,
        "chunk_no": 1,
        "content": "caf\u00e9",
        **fields,
    }
    broken = codec.encode(SUBMITTED, event).replace("\u00e9".encode(), b"\xc3\x28")
    producer = Producer(product.producer_config())
    producer.produce(SUBMITTED, broken, f"{ns}|main|s")
    producer.flush(10)
    taken = submit(product, ns, chunks_of(contents[:1]), ingest_id=ingest_id, full=True, expected_count=2)
    dead = product.until(
        lambda: [one for one in product.records(f"{SUBMITTED}.dlq") if one.key() == f"{ns}|main|s".encode()],
        "no dead letter",
    )
    assert [one.value() for one in dead] == [broken]
    assert (report(product, taken)["status"], marked(product, ns)) == ("running", [])
    mended = submit(product, ns, chunks_of(contents[1:2], first=1), ingest_id=ingest_id, finish=False)
    found = ended(product, mended)
    assert (found["status"], counted(found), marked(product, ns)) == (
        "complete",
        {"unchanged": 2, "orphaned": 2},
        [2, 3],
    )


# -- searching --------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R3.17")
def test_a_search_is_exact_to_the_formula(product: Product, ns: str) -> None:
    """Scores are alpha * cosine + beta * 0.5 ** (age / half-life); age 365 d is found, a millisecond more is not (R3.17).

    Later chunks are not found as of this moment.
    """
    now_ms = ms_from_iso("2026-11-01T12:00:00Z")
    ages = [0, 1, 30, 60, 364.5, 365]
    directions = [(0.0, 1.0), (0.6, 0.8), (1.0, 0.0), (-1.0, 0.0), (0.8, 0.6), (1.0, 0.0)]
    sent = [
        {"chunk_no": number, "content": f"chunk {number}", "embedding": list(direction),
         "published_at": iso_from_ms(now_ms - round(age * DAY_MS))}
        for number, (age, direction) in enumerate(zip(ages, directions, strict=True))
    ]  # fmt: skip
    sent.append({**sent[-1], "chunk_no": 6, "published_at": now_ms - 365 * DAY_MS - 1})
    sent.append({**sent[-1], "chunk_no": 7, "published_at": now_ms + 40 * DAY_MS, "embedding": [0.0, 1.0]})
    ingest(product, ns, sent, full=True)
    asked = base64.urlsafe_b64encode(vector(1.0, 0.0)).decode()
    found = search(product, ns, vector=asked, as_of=iso_from_ms(now_ms), limit=100)
    expected = {
        number: 0.8 * direction[0] + 0.2 * 0.5 ** (age / 30)
        for number, (age, direction) in enumerate(zip(ages, directions, strict=True))
    }
    assert {one["chunk_no"]: pytest.approx(one["final"], abs=1e-6) for one in found["results"]} == expected
    told = [one["final"] for one in found["results"]]
    assert (told, found["complete"]) == (sorted(told, reverse=True), True)
    one = found["results"][0]
    assert one["final"] == 0.8 * one["similarity"] + 0.2 * one["decay"]
    assert {row["chunk_no"]: row["age_days"] for row in found["results"]} == dict(enumerate(ages))
    assert {row["temperature"] for row in found["results"]} == {"warm"}


@pytest.mark.requirement("R3.18")
def test_what_is_cold_may_count_nothing(product: Product) -> None:
    """In a namespace that says so a chunk past its time is found with a score of 0 (R3.18)."""
    source = uuid.uuid4().hex
    old = iso_from_ms(ms_from_iso("2020-01-01T00:00:00Z"))
    chunks = [{"chunk_no": 0, "content": "old", "published_at": old}, {"chunk_no": 1, "content": "new"}]
    ingest(product, "zeroed", chunks, source=source)
    found = search(product, "zeroed", "old", source_id=source)["results"]
    assert [(one["chunk_no"], one["temperature"]) for one in found] == [(1, "warm"), (0, "cold")]
    assert found[1]["final"] == 0


def test_a_search_is_conditional(product: Product, ns: str) -> None:
    """304 until something visible has changed; another query has another ETag."""
    contents = texts(6)
    taken = submit(product, ns, chunks_of(contents), full=True)
    ended(product, taken)
    until_embedded(product, ns)
    path = f"/api/chunks/search?ns={ns}&q=broker&as_of=2027-01-01T00:00:00Z"
    first = product.get(path)
    tag = first.headers["etag"]
    assert tag.startswith("W/")
    assert first.headers["x-caused-by"].startswith("chunks.")
    again = product.get(path, If_None_Match=tag)
    assert (again.status_code, again.headers["etag"], again.content) == (304, tag, b"")
    assert product.get(f"{path}&limit=3").headers["etag"] != tag
    ingest(product, ns, chunks_of(contents), full=True)
    assert product.get(path, If_None_Match=tag).status_code == 304  # nothing has changed
    ingest(product, ns, chunks_of(contents[:3]), full=True)
    after = product.get(path, If_None_Match=tag)
    assert (after.status_code, len(after.json()["results"])) == (200, 3)
    assert int(after.headers["x-resource-version"]) > int(first.headers["x-resource-version"])


def test_a_search_sees_what_was_just_written(product: Product, ns: str) -> None:
    """With the positions of an ingest a search has its chunks, each time."""
    for number in range(10):
        taken = submit(product, ns, chunks_of([f"text {number}"], first=number), finish=False)
        positions = ",".join(taken["positions"])
        answer = product.get(f"/api/chunks/search?ns={ns}&limit=100", X_Min_Position=positions, X_Max_Wait_Ms="30000")
        assert len(answer.json()["results"]) == number + 1, answer.text


def test_slots_sources_and_words(product: Product, ns: str) -> None:
    """Filters leave what they name; words find what no vector knows of yet."""
    for slot, source in (("a", "one"), ("a", "two"), ("b", "one")):
        ingest(product, ns, [{"chunk_no": 0, "content": f"The zyzzyva of {slot} {source}"}], slot=slot, source=source)
    ingest(product, ns, chunks_of(texts(5)), source="noise")

    def places(**more: Any) -> set[tuple[str, str]]:
        return {(one["slot"], one["source_id"]) for one in search(product, ns, "zyzzyva", limit=100, **more)["results"]}

    assert places(slot="b") == {("b", "one")}
    assert places(source_id=["one"]) == {("a", "one"), ("b", "one")}
    assert places(slot="a", source_id=["two", "noise"]) == {("a", "two")}
    best = search(product, ns, "zyzzyva", mode="hybrid", limit=3)["results"]
    assert all("zyzzyva" in one["content"] for one in best)
    assert places(slot="nowhere") == set()


# -- beside the rest of the product -------------------------------------------------------------------------------------------


def test_a_file_from_the_command_line(product: Product, ns: str, tmp_path: Path) -> None:
    """It is ingested and searched; a file with a bad chunk gives exit status 1, and its good chunks are stored."""
    path = tmp_path / "chunks.jsonl"
    path.write_text("".join(json.dumps({"content": text}) + "\n" for text in texts(7)), encoding="utf-8")
    named = ("--ns", ns, "--slot", "main", "--source", "file")
    first = json.loads(product.cli("chunks", "ingest", str(path), *named, "--full", "--json").stdout)
    assert (first["status"], counted(first)) == ("complete", {"inserted": 7})
    with path.open("a", encoding="utf-8") as file:
        file.write(
            json.dumps({"content": "bad", "chunk_no": -7})
            + "\n"
            + json.dumps({"content": "good", "chunk_no": 9})
            + "\n"
        )
    done = product.cli("chunks", "ingest", str(path), *named, "--full", check=False)
    assert (done.returncode, "failed: 1 inserted, 0 updated, 7 unchanged, 1 failures, 0 orphaned" in done.stdout) == (
        1,
        True,
    )
    found = json.loads(
        product.cli("chunks", "search", "good", "--ns", ns, "--mode", "hybrid", "--limit", "1", "--json").stdout
    )
    assert [one["chunk_no"] for one in found["results"]] == [9]
    assert json.loads(product.cli("chunks", "lifecycle", ns, "--json").stdout)["chunks"] == 8
    path.write_text("", encoding="utf-8")
    for more, orphaned in (((), 0), (("--force",), 8)):
        done = product.cli("chunks", "ingest", str(path), *named, "--full", *more, "--json")
        assert json.loads(done.stdout)["orphaned"] == orphaned


def test_a_document_of_a_job_is_found(product: Product, ns: str) -> None:
    """The chunks of an ingestion are stored, reported under the job's id, and found by their text."""
    org = f"org-{uuid.uuid4().hex[:10]}"
    product.http.put(f"/api/organizations/{org}/plan", json={"plan": "enterprise"})
    text = "# Gardens\n\nMarrows grow slowly.\n\n# Sky\n\nThe aurora borealis is green."
    headers = {"content-type": "text/markdown"}
    put = product.http.put("/api/blobs", params={"organization_id": org}, content=text.encode(), headers=headers)
    args = {"document_ids": [put.json()["sha256"]], "ns": ns, "slot": "main"}
    body = {"kind": "ingestion", "organization_id": org, "user_id": "ada", "args": args}
    job_id = product.http.post("/api/jobs", json=body).json()["job_id"]

    def look() -> dict[str, Any] | None:
        answer = product.get(f"/api/chunks/ingest/{job_id}")
        return dict(answer.json()) if answer.status_code == 200 and answer.json()["status"] != "running" else None

    found = product.until(look, "it has not ended")
    assert (found["status"], found["inserted"]) == ("complete", 2)
    until_embedded(product, ns)
    best = search(product, ns, "aurora borealis", limit=1)["results"][0]
    assert (best["title"], best["source_id"]) == ("Sky", put.json()["sha256"])


def test_an_answer_quotes_an_open_namespace(product: Product, ns: str) -> None:
    """A query finds chunks of open namespaces, and not those of others."""
    fact = f"The quokka {uuid.uuid4().hex[:8]} naps at noon."
    closed = f"The quokka {uuid.uuid4().hex[:8]} naps at midnight."
    ingest(product, "docs", chunks_of([fact]), source=uuid.uuid4().hex)
    ingest(product, ns, chunks_of([closed]))
    until_embedded(product, "docs")
    until_embedded(product, ns)
    body = {"user_id": str(uuid.uuid4()), "query": "When does the quokka nap?"}
    request_id = product.http.post("/api/query", json=body).json()["request_id"]

    def look() -> dict[str, Any] | None:
        answer = product.get(f"/api/query/{request_id}/status")
        return dict(answer.json()) if answer.status_code == 200 and answer.json()["status"] != "processing" else None

    found = json.dumps(product.until(look, "it is not answered"))
    assert (fact in found, closed in found) == (True, False), found


# -- killed -----------------------------------------------------------------------------------------------------------------


def editions(namespace: str) -> Iterator[list[dict[str, Any]]]:
    """A step of ingests for each kill: each brings two new sources, and changes and shortens those of the step before."""
    for step in range(KILLS):
        bodies = []
        for place in range(2):
            source = f"source-{step}-{place}"
            bodies.append((source, texts(40, seed=2 * step + place)))
        if step:
            for place in range(2):
                contents = texts(40, seed=2 * (step - 1) + place)
                contents[::7] = texts(len(contents[::7]), seed=1_000 + step)
                bodies.append((f"source-{step - 1}-{place}", contents[: 30 + place]))
        yield [
            {
                "ns": namespace,
                "slot": "main",
                "source_id": source,
                "full": True,
                "chunks": chunks_of(contents, title=source),
            }
            for source, contents in bodies
        ]


def sent(product: Product, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Submit each body in parts of a few chunks, the last one with the end; return the answers."""
    taken = []
    for body in bodies:
        ingest_id, chunks = str(uuid.uuid4()), body["chunks"]
        for place in range(0, len(chunks), CHUNKS_PER_PART):
            is_last = place + CHUNKS_PER_PART >= len(chunks)
            more = {"finish": is_last, "expected_count": len(chunks), "ingest_id": ingest_id}
            answer = posted(product, {**body, **more, "chunks": chunks[place : place + CHUNKS_PER_PART]})
        taken.append(answer)
    return taken


def posted(product: Product, body: dict[str, Any]) -> dict[str, Any]:
    """Submit until the API has taken it, always under the same id, as a careful client does."""

    def once() -> dict[str, Any] | None:
        answer = product.http.post("/api/chunks/ingest", json=body)
        assert answer.status_code in (202, 503), answer.text
        return dict(answer.json()) if answer.status_code == 202 else None

    taken: dict[str, Any] = product.until(once, "it is not taken")
    return taken


def settled(product: Product, ns: str, taken: Sequence[dict[str, Any]]) -> tuple[list[Any], list[dict[str, int]]]:
    """The rows and reports of a namespace once all ingests have ended and all vectors are made, without what time made."""
    reports = [ended(product, one, 120) for one in taken]
    names = ("slot", "source_id", "chunk_no", "content", "title", "embedding", "embedding_stale", "to_delete")
    kept = [tuple(row[name] for name in names) for row in until_embedded(product, ns, 120)]
    # The vector of a chunk to be deleted may have been computed before it was marked, or not.
    kept = [(*row[:5], None, *row[6:]) if row[7] else row for row in kept]
    # A source that is sent again before its ingest was decided is superseded; which is so depends on the moment alone.
    assert {one["status"] for one in reports} <= {"complete", "superseded"}
    return kept, [counted(one) for one in reports]


@pytest.mark.timeout(900)
def test_kill_9_at_random_moments(product: Product, ns: str) -> None:
    """Sinks, workers and the decision worker are killed under ingests: the same rows and reports as undisturbed."""
    seed = uuid.uuid4().int % 2**32
    print(f"seed {seed}")  # shown when it fails, so that the moments can be had again
    moments = np.random.default_rng(seed)
    roles = list(itertools.islice(itertools.cycle(["sinks", "workers", "worker"]), KILLS))
    moments.shuffle(roles)
    disturbed, calm = [], []
    with ThreadPoolExecutor(1) as client:
        for role, bodies in zip(roles, editions(ns), strict=True):
            sending = client.submit(sent, product, bodies)
            time.sleep(moments.random() * 2)  # the point is a random moment
            product.kill(role)
            disturbed += sending.result()
    product.until_ready()
    found = settled(product, ns, disturbed)
    other = f"{ns}-calm"
    for bodies in editions(other):
        calm += sent(product, bodies)
    expected = settled(product, other, calm)
    assert found[1] == expected[1]
    assert found[0] == expected[0]
    assert len(found[0]) == KILLS * 2 * 40
    assert sum(row[-1] for row in found[0]) == (KILLS - 1) * (10 + 9)  # a source of 40 that became one of 30, and of 31
