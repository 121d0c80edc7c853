"""Reads the changelogs of tables, for a worker that restores them.

Invariant: no record is skipped. If the log no longer has the next offset, reading ends with an error instead of
continuing at another one; it also ends if a tombstone after that offset may have been compacted away.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from highwater.schemas.errors import UnavailableError
from highwater.schemas.topics import MIB
from highwater.streams.clock import wall_ns
from highwater.streams.restoring import Batch, BeginningMovedError, Place, Span, TombstonesGoneError

# Records per batch: a millisecond's work, so that a restoration can stop at once.
_BATCH_MAX = 1_000
# How long to wait for a batch.
_WAIT_SECONDS = 0.1
# Prefetching. librdkafka keeps some 300 bytes per record of its own, which the second limit bounds; the third limits
# one answer of a broker, whose records are all unpacked at once.
_QUEUE_KIB_MAX = 16 * 1024
_QUEUED_MAX = 50_000
_FETCH_BYTES_MAX = 4 * MIB
# A store that lacks older records than this is read from the beginning. A topic keeps a tombstone for a day by default
# (`delete.retention.ms`), counted from when the cleaner first meets it; half of it leaves room for clock errors and for
# a restoration that takes hours.
_TOMBSTONES_KEPT_MS = 12 * 3_600_000
_ANSWER_SECONDS = 5.0
_UNANSWERED = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)  # noqa: SLF001 - librdkafka's own names


def read_changelogs(client: Mapping[str, str], spans: Mapping[Place, Span]) -> Generator[Batch, None, None]:
    """Yield the records of each span in order of their offsets, and perhaps newer ones; an empty batch while the broker
    sends nothing.

    Continues until it is closed, which closes its client. Waits while a broker is unavailable.

    Raises:
        BeginningMovedError: records were deleted before they were read.
        TombstonesGoneError: the next offset lies after the log's beginning, and before the range in which every
            tombstone is kept.
        UnavailableError: the broker refuses a read.
    """
    reader = _open(client)
    try:
        while (beginnings := _outlived(reader, spans)) is None:
            yield Batch([], {})
        if beginnings:
            raise TombstonesGoneError(beginnings)
        reader.assign([TopicPartition(*place, span.first) for place, span in spans.items()])
        while True:
            yield _batch_of(reader.consume(_BATCH_MAX, _WAIT_SECONDS))
    finally:
        reader.close()


def _outlived(reader: Consumer, spans: Mapping[Place, Span]) -> dict[Place, int] | None:
    """Return the beginning of the log for partitions whose tombstones may be gone; None while the broker does not answer."""
    since_ms = wall_ns() // 1_000_000 - _TOMBSTONES_KEPT_MS
    asked = [TopicPartition(*place, since_ms) for place, span in spans.items() if span.first > 0]
    if not asked:
        return {}
    try:
        # The first record that is newer; -1 if all are older.
        found = reader.offsets_for_times(asked, timeout=_ANSWER_SECONDS)
        old = [one for one in found if not 0 <= one.offset <= spans[one.topic, one.partition].first]
        beginnings = {
            (one.topic, one.partition): reader.get_watermark_offsets(one, timeout=_ANSWER_SECONDS)[0] for one in old
        }
    except KafkaException as error:
        if error.args[0].retriable() or error.args[0].code() in _UNANSWERED:
            return None
        raise UnavailableError(f"the times of the changelogs cannot be read: {error.args[0].str()}") from error
    return {place: beginning for place, beginning in beginnings.items() if beginning < spans[place].first}


def _open(client: Mapping[str, str]) -> Consumer:
    return Consumer(
        {
            **client,
            "client.id": "highwater-restore",
            "group.id": "highwater-restore",  # librdkafka requires a group name; none is joined and nothing is committed
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            "fetch.max.bytes": _FETCH_BYTES_MAX,
            "queued.max.messages.kbytes": _QUEUE_KIB_MAX,
            "queued.min.messages": _QUEUED_MAX,
            "fetch.queue.backoff.ms": 5,  # the default waits a second when the queue is full
        }
    )


def _batch_of(messages: Sequence[Message]) -> Batch:
    if all(message.error() is None for message in messages):
        return Batch(messages, {})
    ends: dict[Place, int] = {}
    for message in messages:
        error = message.error()
        if error is None:
            continue
        place = (str(message.topic()), int(message.partition() or 0))
        code = error.code()
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name for it
            ends[place] = int(message.offset() or 0)
        elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):  # noqa: SLF001 - as above
            raise BeginningMovedError(place)
        elif not error.retriable():
            raise UnavailableError(f"the changelog {place[0]}/{place[1]} cannot be read: {error.str()}")
    return Batch([message for message in messages if message.error() is None], ends)
