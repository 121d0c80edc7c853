"""Reading the changelogs of tables, for a worker that restores them.

Law: a record is passed over by nobody. Where the log no longer has the offset that is to be read next, reading ends with an error
instead of going on at another.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from highwater.schemas.errors import UnavailableError
from highwater.schemas.topics import MIB
from highwater.streams.restoring import Batch, BeginningMovedError, Place, Span

# Records handed over at once: a millisecond's work, so that a restoration that is to end does so at once.
_BATCH_MAX = 1_000
# How long a batch is waited for.
_WAIT_SECONDS = 0.1
# What is fetched ahead. Beside the bytes of a record librdkafka keeps some 300 of its own, which the second limit bounds; the
# third is that of one answer of a broker, whose records are all unpacked at once.
_QUEUE_KIB_MAX = 16 * 1024
_QUEUED_MAX = 50_000
_FETCH_BYTES_MAX = 4 * MIB


def read_changelogs(client: Mapping[str, str], spans: Mapping[Place, Span]) -> Generator[Batch, None, None]:
    """Records of each span in order of their offsets, and perhaps newer ones; an empty batch while the broker sends nothing.

    Goes on until it is closed, which closes its client. A broker that is away is waited for.

    Raises:
        BeginningMovedError: records were deleted before they were read.
        UnavailableError: the broker refuses a read.
    """
    reader = _open(client)
    try:
        reader.assign([TopicPartition(*place, span.first) for place, span in spans.items()])
        while True:
            yield _batch_of(reader.consume(_BATCH_MAX, _WAIT_SECONDS))
    finally:
        reader.close()


def _open(client: Mapping[str, str]) -> Consumer:
    return Consumer(
        {
            **client,
            "client.id": "highwater-restore",
            "group.id": "highwater-restore",  # librdkafka wants a name; none is joined and nothing is committed
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
