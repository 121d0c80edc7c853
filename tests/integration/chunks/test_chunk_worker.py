"""The agents of chunks in a real worker: ingests are decided once through kills and lost state, namespaces rated at the hours."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from highwater.deploy.local.stack import Addresses
from highwater.schemas.chunks import INGEST_DECIDED, INGEST_PROGRESSED, NAMESPACE_RATED, QUERIES_SERVED, SWEEP_REQUESTED
from highwater.streams.chunks.completion import ABANDONED_MS
from tests.integration.agents import Kafka, Worker, empty, until
from tests.unit.chunks.test_completion import progress

HOUR_SECONDS = 3_600


@pytest.fixture
def worker(parts: Addresses, tmp_path: Path) -> Iterator[Worker]:
    """A worker of one test alone, just after an hour, so that none ends by itself meanwhile; news are hot at 50 searches."""
    empty(str(parts.kafka))
    namespaces = tmp_path / "namespaces.toml"
    namespaces.write_text("[namespaces.news]\nhot_queries_per_day = 50\n", encoding="utf-8")
    settings = {"HIGHWATER_NAMESPACES": str(namespaces)}
    with contextlib.closing(Worker(str(parts.kafka), tmp_path, settings=settings)) as one:
        one.move_clock(HOUR_SECONDS - one.now() / 1000 % HOUR_SECONDS + 10)
        yield one.start()


def tell(kafka: Kafka, revision: int, **more: Any) -> None:
    """Publish progress, as the sink of chunks does."""
    event = progress(revision, **more)
    kafka.send(INGEST_PROGRESSED, f"{event['ns']}|{event['slot']}|{event['source_id']}", **event)


def outcomes(kafka: Kafka) -> list[tuple[str, int, str]]:
    """The decisions so far: source, revision, outcome; in order."""
    told = [answer.event for answer in kafka.answers(INGEST_DECIDED, None)]
    return sorted((one["source_id"], one["revision"], one["outcome"]) for one in told)


def rest(worker: Worker, *, loses_state: bool) -> None:
    """Kill the worker after what it was sent, perhaps rob it of its state, and start it again.

    Ticks are counted over all partitions: after two of them the slowest has applied one.
    """
    worker.after_ticks(2)
    worker.end(signal.SIGKILL)
    if loses_state:
        worker.lose_state()
    worker.start()


def test_ingests_are_decided_once_through_kills(worker: Worker, kafka: Kafka):
    """Progress in three parts, each three times, a worker killed after each of the first two and once robbed of its state: one
    decision a source, with its inputs; and one that is never finished is given up six hours later, and only then.
    """
    for revision, seen in ((1, 4), (2, 9), (3, 10)):
        for _ in range(3):
            tell(kafka, revision, seen=seen, at=worker.now(), source_id="a.md")
            tell(
                kafka,
                revision,
                seen=seen - (revision == 3),
                failed=int(revision == 3),
                at=worker.now(),
                source_id="b.md",
            )
            tell(kafka, revision, seen=seen, expected=None, at=worker.now(), source_id="c.md")
        if revision < 3:
            rest(worker, loses_state=revision == 2)
    until(lambda: len(outcomes(kafka)) >= 2, "both are decided")
    worker.move_clock(ABANDONED_MS / 1000 - 120)
    worker.after_ticks(2)
    ended = [("a.md", 3, "complete"), ("b.md", 3, "failed")]
    assert outcomes(kafka) == ended
    (complete,) = [one.event for one in kafka.answers(INGEST_DECIDED, "docs|main|a.md")]
    assert (complete["marks_orphans"], complete["seen"], complete["expected"]) == (True, 10, 10)
    worker.move_clock(240)
    until(lambda: len(outcomes(kafka)) >= 3, "the third is given up")
    worker.until_committed(*kafka.answers(INGEST_DECIDED, None))
    rest(worker, loses_state=True)
    worker.after_ticks(3)
    assert outcomes(kafka) == [*ended, ("c.md", 3, "abandoned")]
    assert kafka.dead_letters(INGEST_PROGRESSED) == []


def test_namespaces_are_rated_and_sweeps_asked_for_at_the_hours(worker: Worker, kafka: Kafka):
    """By the passports of the file, of searches that are counted once through a kill and a loss of state."""
    worker.after_ticks(1)
    for ns, queries in (("news", 350), ("docs", 350)):
        at = worker.now()
        kafka.send(QUERIES_SERVED, ns, ns=ns, queries=queries, since=at - 10_000, at=at)
    rest(worker, loses_state=True)
    worker.after_ticks(2)
    assert kafka.answers(NAMESPACE_RATED, None) == []
    before = len(kafka.answers(SWEEP_REQUESTED, None))  # that of the first hour is older than the reader, or not
    worker.move_clock(HOUR_SECONDS)
    until(lambda: len(kafka.answers(NAMESPACE_RATED, None)) >= 2, "both are rated")
    worker.after_ticks(2)
    told = [answer.event for answer in kafka.answers(NAMESPACE_RATED, None)]
    assert sorted((one["ns"], one["is_hot"], one["queries_per_day"]) for one in told) == [
        ("docs", False, 50.0),
        ("news", True, 50.0),
    ]
    worker.move_clock(8 * 24 * HOUR_SECONDS)
    until(lambda: len(kafka.answers(NAMESPACE_RATED, None)) >= 4, "both have cooled down")
    worker.after_ticks(2)
    told = [answer.event for answer in kafka.answers(NAMESPACE_RATED, None)][2:]
    assert sorted((one["ns"], one["is_hot"], one["queries_per_day"]) for one in told) == [
        ("docs", False, 0.0),
        ("news", False, 0.0),
    ]
    sweeps = [answer.event for answer in kafka.answers(SWEEP_REQUESTED, None)]
    hours = [one["sweep"] for one in sweeps]
    assert len(hours) == len(set(hours)) == before + 2
    assert all(hour.endswith(":00:00Z") for hour in hours)
    assert sweeps[-1]["now"] - sweeps[-2]["now"] == pytest.approx(8 * 24 * HOUR_SECONDS * 1000, abs=60_000)
