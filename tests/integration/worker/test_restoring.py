"""Stores of tables restored from changelogs, with a real broker: after any interruption, rows and offset belong together."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from rocksdict import Options, Rdict

from highwater.connectors.kafka.changelogs import read_changelogs
from highwater.streams.clock import wall_ns
from highwater.streams.restoring import (
    Batch,
    BeginningMovedError,
    ChangelogRecord,
    Place,
    Restoration,
    Span,
    TombstonesGoneError,
    emptied,
)
from tests import ROOT
from tests.conftest import Stack
from tests.integration.agents import until

OFFSET = b"__faust\0offset__"
PARTITIONS = 2
# More than two batches of the reader, so that there is something left when one of them was written.
RECORDS = 12_000
KEYS = 701  # no multiple of five, so that each key is both written and deleted
# A broker that gets no processor for a while answers late; some of its answers took more than 30 s under load.
ANSWER_SECONDS = 120.0

Log = Mapping[Place, list[tuple[bytes, bytes | None]]]

# A process that restores, and stops forever once it has written the second batch.
RESTORE = """
import json, sys, threading
from contextlib import closing
from functools import partial
from pathlib import Path
from rocksdict import Options, Rdict
from highwater.connectors.kafka.changelogs import read_changelogs
from highwater.streams.restoring import Restoration, Span

address, topic, folder, lasts = sys.argv[1], sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4])

def read(spans):
    with closing(read_changelogs({"bootstrap.servers": address}, spans)) as batches:
        written = 0
        for batch in batches:
            yield batch
            written += bool(batch.records)
            if written == 2:
                print("written", flush=True)
                threading.Event().wait()

spans = {(topic, p): Span(0, last) for p, last in enumerate(lasts)}
stores = {place: Rdict(str(folder / str(place[1])), Options(raw_mode=True)) for place in spans}
Restoration(read, spans, stores, b"__faust\\0offset__").run()
"""


@pytest.fixture
def topic() -> str:
    """A changelog of one test alone."""
    return f"restoring-{uuid.uuid4().hex[:8]}-changelog"


@pytest.fixture
def admin(stack: Stack) -> AdminClient:
    """A client that makes topics."""
    return AdminClient({"bootstrap.servers": stack.kafka})


@pytest.fixture
def produce(stack: Stack) -> Callable[..., None]:
    """Append records to a topic, by partition in the order given."""
    producer = Producer({"bootstrap.servers": stack.kafka, "linger.ms": 5, "enable.idempotence": True})

    def append(log: Log, at_ms: int | None = None) -> None:
        for (name, partition), records in log.items():
            for key, value in records:
                producer.produce(name, key=key, value=value, partition=partition, timestamp=at_ms or 0)
        assert producer.flush(ANSWER_SECONDS) == 0

    return append


@pytest.fixture
def stores(tmp_path: Path, topic: str) -> Iterator[dict[Place, Rdict]]:
    """A store of each partition."""
    made = {(topic, p): open_store(tmp_path, p) for p in range(PARTITIONS)}
    yield made
    for store in made.values():
        store.close()


def open_store(folder: Path, partition: int) -> Rdict:
    """A store as the worker's are, of bytes."""
    return Rdict(str(folder / str(partition)), Options(raw_mode=True))


def make(admin: AdminClient, topic: str, **config: str) -> None:
    """A compacted topic."""
    config = {"cleanup.policy": "compact", **{name.replace("_", "."): value for name, value in config.items()}}
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(ANSWER_SECONDS)


def a_log(topic: str, first: int = 0, count: int = RECORDS) -> dict[Place, list[tuple[bytes, bytes | None]]]:
    """Changes of rows, each key many times, every fifth a deletion; the last write differs by key."""
    return {
        (topic, p): [
            (b"k%d" % (i * 31 % KEYS), None if i * i % 5 == 1 else b"row %d" % i) for i in range(first, first + count)
        ]
        for p in range(PARTITIONS)
    }


@pytest.fixture
def log(admin: AdminClient, produce: Callable[..., None], topic: str) -> Log:
    """A changelog that has been written."""
    make(admin, topic)
    written = a_log(topic)
    produce(written)
    return written


def rows_after(records: list[tuple[bytes, bytes | None]]) -> dict[bytes, bytes]:
    """The rows that changes leave."""
    last = dict(records)
    return {key: value for key, value in last.items() if value is not None}


def rows_of(store: Rdict) -> dict[bytes, bytes]:
    """The rows in a store."""
    return {key: value for key, value in store.items() if key != OFFSET}


def spans_of(log: Log, first: int = 0) -> dict[Place, Span]:
    """All of a log from an offset on."""
    return {place: Span(first, len(records) - 1) for place, records in log.items()}


def reader(stack: Stack) -> Callable[[Mapping[Place, Span]], Generator[Batch, None, None]]:
    """The worker's own."""
    return partial(read_changelogs, {"bootstrap.servers": stack.kafka})


def test_the_last_row_of_each_key_stays(stack: Stack, log: Log, stores: dict[Place, Rdict]) -> None:
    """Rows are those that the changes leave, deleted ones are gone, the offset is the last, and progress ends at nothing."""
    restoration = Restoration(reader(stack), spans_of(log), stores, OFFSET)
    assert restoration.remaining == restoration.total == PARTITIONS * RECORDS
    assert restoration.run()
    assert restoration.remaining == 0
    for place, store in stores.items():
        assert rows_of(store) == rows_after(log[place])
        assert store[OFFSET] == b"%d" % (RECORDS - 1)


def test_a_log_that_was_compacted_gives_the_same_rows(
    stack: Stack, admin: AdminClient, produce: Any, topic: str, stores: dict[Place, Rdict]
) -> None:
    """With most records and tombstones compacted away the rows are the same."""
    make(admin, topic, **COMPACTED_AT_ONCE)
    log = a_log(topic)
    produce(log)

    def close_segments() -> None:
        # A segment is closed by the first record that comes after its time, and only closed ones are compacted.
        produce({place: [(b"closing", None)] for place in log})
        for records in log.values():
            records.append((b"closing", None))

    with often_compacted(admin):
        until(lambda: close_segments() or len(kept(stack, log)) < PARTITIONS * RECORDS / 2, "compacted")
    assert Restoration(reader(stack), spans_of(log), stores, OFFSET).run()
    for place, store in stores.items():
        assert rows_of(store) == rows_after(log[place])


COMPACTED_AT_ONCE = {"min_cleanable_dirty_ratio": "0.001", "delete_retention_ms": "0", "segment_ms": "100"}


def kept(stack: Stack, log: Log) -> list[ChangelogRecord]:
    """The records that a log still has."""
    with contextlib.closing(reader(stack)(spans_of(log))) as batches:
        found: list[ChangelogRecord] = []
        ended = set[Place]()
        while len(ended) < PARTITIONS:
            batch = next(batches)
            found += batch.records
            ended.update(batch.ends)
    return found


@contextlib.contextmanager
def often_compacted(admin: AdminClient) -> Iterator[None]:
    """The broker checks for compaction ten times a second instead of four times a minute."""

    def alter(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("log.cleaner.backoff.ms", "100", incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        next(iter(admin.incremental_alter_configs([resource]).values())).result(ANSWER_SECONDS)

    alter(AlterConfigOpType.SET)
    try:
        yield
    finally:
        alter(AlterConfigOpType.DELETE)


def test_killed_in_the_middle_it_continues_where_its_rows_end(
    stack: Stack, log: Log, topic: str, tmp_path: Path
) -> None:
    """After SIGKILL each store holds exactly the rows up to its offset; from there on it becomes complete."""
    lasts = json.dumps([span.last for span in spans_of(log).values()])
    with subprocess.Popen(
        [sys.executable, "-c", RESTORE, stack.kafka, topic, str(tmp_path), lasts],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.kill()
    stores = {place: open_store(tmp_path, place[1]) for place in log}
    offsets = {place: int(store.get(OFFSET, b"-1")) for place, store in stores.items()}
    assert 0 < sum(offset + 1 for offset in offsets.values()) < PARTITIONS * RECORDS
    for place, store in stores.items():
        assert rows_of(store) == rows_after(log[place][: offsets[place] + 1])
    spans = {place: Span(offset + 1, RECORDS - 1) for place, offset in offsets.items()}
    restoration = Restoration(reader(stack), spans, stores, OFFSET)
    assert restoration.run()
    assert restoration.total < PARTITIONS * RECORDS
    for place, store in stores.items():
        assert rows_of(store) == rows_after(log[place])
        store.close()


def test_what_is_appended_meanwhile_goes_with_its_offset(
    stack: Stack, log: Log, produce: Any, topic: str, stores: dict[Place, Rdict]
) -> None:
    """A log that grows while it is read holds nothing up, and rows and offset in a store are of the same moment."""
    more = a_log(topic, first=RECORDS, count=3_000)

    def read(spans: Mapping[Place, Span]) -> Generator[Batch, None, None]:
        with contextlib.closing(reader(stack)(spans)) as batches:
            yield next(batches)
            produce(more)
            yield from batches

    restoration = Restoration(read, spans_of(log), stores, OFFSET)
    assert restoration.run()
    assert restoration.remaining == 0
    assert dict(restoration.offsets) == dict.fromkeys(log, RECORDS - 1)
    for place, store in stores.items():
        upto = int(store[OFFSET]) + 1
        assert upto >= RECORDS
        assert rows_of(store) == rows_after([*log[place], *more[place]][:upto])


def test_a_mark_of_a_transaction_at_the_end_is_the_end(
    stack: Stack, admin: AdminClient, topic: str, stores: dict[Place, Rdict]
) -> None:
    """The offset of the mark is part of the log, and no record is given for it."""
    make(admin, topic)
    producer = Producer({"bootstrap.servers": stack.kafka, "transactional.id": topic})
    producer.init_transactions(ANSWER_SECONDS)
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(topic, key=b"k", value=b"row", partition=partition)
    producer.commit_transaction(ANSWER_SECONDS)
    restoration = Restoration(reader(stack), dict.fromkeys(stores, Span(0, 1)), stores, OFFSET)
    assert restoration.run()
    assert restoration.remaining == 0
    assert all(rows_of(store) == {b"k": b"row"} for store in stores.values())


def test_an_end_before_that_of_the_span_is_not_the_end(
    stack: Stack, log: Log, produce: Any, topic: str, stores: dict[Place, Rdict]
) -> None:
    """A leader that has just been elected may show less of a log than there is: the rest is waited for."""
    more = a_log(topic, first=RECORDS, count=1)

    def read(spans: Mapping[Place, Span]) -> Generator[Batch, None, None]:
        ended = set[Place]()
        with contextlib.closing(reader(stack)(spans)) as batches:
            for batch in batches:
                fresh = batch.ends.keys() - ended
                ended.update(fresh)
                yield batch
                produce({place: more[place] for place in fresh})

    spans = {place: Span(0, RECORDS) for place in log}
    assert Restoration(read, spans, stores, OFFSET).run()
    for place, store in stores.items():
        assert rows_of(store) == rows_after([*log[place], *more[place]])


def test_records_deleted_before_they_are_read_end_it(
    stack: Stack, admin: AdminClient, produce: Any, topic: str, stores: dict[Place, Rdict]
) -> None:
    """Records that are deleted under a reader are not skipped."""
    make(admin, topic, cleanup_policy="compact,delete")
    log = a_log(topic)
    produce(log)
    for future in admin.delete_records([TopicPartition(topic, 1, 100)]).values():
        future.result(ANSWER_SECONDS)
    with pytest.raises(BeginningMovedError, match="partition 1"):
        Restoration(reader(stack), spans_of(log), stores, OFFSET).run()


def test_a_store_that_was_left_for_long_is_read_anew(
    stack: Stack, admin: AdminClient, produce: Any, topic: str, stores: dict[Place, Rdict]
) -> None:
    """A row was deleted after the store was left, and the log has forgotten that: the reader says so, and the row goes."""
    long_ago_ms = wall_ns() // 1_000_000 - 20 * 3_600_000
    make(admin, topic, **COMPACTED_AT_ONCE)
    first = {(topic, p): [(b"stays", b"1"), (b"goes", b"1")] for p in range(PARTITIONS)}
    produce(first, at_ms=long_ago_ms)
    assert Restoration(reader(stack), spans_of(first), stores, OFFSET).run()
    log: dict[Place, list[tuple[bytes, bytes | None]]] = {
        place: [*rows, (b"goes", None)] for place, rows in first.items()
    }
    produce({place: rows[-1:] for place, rows in log.items()}, at_ms=long_ago_ms + 1_000)

    def close_segments() -> None:
        produce({place: [(b"newer", b"%d" % len(rows))] for place, rows in log.items()})
        for rows in log.values():
            rows.append((b"newer", b"%d" % len(rows)))

    with often_compacted(admin):
        until(
            lambda: close_segments() or all(r.key() != b"goes" for r in kept(stack, log)), "the deletion is forgotten"
        )
    spans = spans_of(log, first=2)
    with pytest.raises(TombstonesGoneError) as found:
        Restoration(reader(stack), spans, stores, OFFSET).run()
    assert found.value.beginnings == dict.fromkeys(spans, 0)
    for store in stores.values():
        assert rows_of(store) == {b"stays": b"1", b"goes": b"1"}
        emptied(store)
        assert dict(store.items()) == {}
    assert Restoration(reader(stack), spans_of(log), stores, OFFSET).run()
    for place, store in stores.items():
        assert rows_of(store) == rows_after(log[place])


def test_a_store_that_was_left_a_while_ago_is_continued(
    stack: Stack, admin: AdminClient, produce: Any, topic: str, stores: dict[Place, Rdict]
) -> None:
    """Where the log keeps every deletion that a store lacks, the rest is read and no more."""
    make(admin, topic)
    log = a_log(topic, count=10)
    now_ms = wall_ns() // 1_000_000
    produce({place: rows[:5] for place, rows in log.items()}, at_ms=now_ms - 20 * 3_600_000)
    produce({place: rows[5:] for place, rows in log.items()}, at_ms=now_ms - 11 * 3_600_000)
    restoration = Restoration(reader(stack), spans_of(log, first=5), stores, OFFSET)
    assert restoration.run()
    for place, store in stores.items():
        assert rows_of(store) == rows_after(log[place][5:])


def test_one_that_is_stopped_writes_no_more(stack: Stack, log: Log, stores: dict[Place, Rdict]) -> None:
    """It ends after the batch in hand and says that it is not complete."""

    def read(spans: Mapping[Place, Span]) -> Generator[Batch, None, None]:
        with contextlib.closing(reader(stack)(spans)) as batches:
            for batch in batches:
                if batch.records:
                    restoration._stopping.set()  # `stop` would wait here for itself
                yield batch

    restoration = Restoration(read, spans_of(log), stores, OFFSET)
    assert not restoration.run()
    restoration.stop()
    assert 0 < restoration.remaining < restoration.total
    for place, store in stores.items():
        assert rows_of(store) == rows_after(log[place][: int(store.get(OFFSET, b"-1")) + 1])
