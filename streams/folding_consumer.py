"""The stream library's consumer, extended to pass on the records of folded topics in batches (`streams/folding.py`).

Invariant: a batch is committed after its last record, once an agent has acknowledged it and all before it. Batches from
before offsets moved are forgotten: they are read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from aiokafka.consumer.fetcher import FetchError, FetchResult
from aiokafka.errors import ConsumerStoppedError, NoOffsetForPartitionError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import ConsumerMessage

from highwater.streams.clock import monotonic_seconds
from highwater.streams.folding import BATCH_RECORDS_MAX, Batch, Handover, in_batches
from highwater.streams.intake import Record

# A fetch that leaves out partitions with enough waiting records ends after this long, so that they are fetched again
# soon.
_FULL_FETCH_SECONDS_MAX = 0.02


class BatchMessage(ConsumerMessage, Batch):  # type: ignore[misc]
    """Records of one partition as one message of the library; its offset is that of the last."""

    records: Sequence[Any]

    def alone(self, record: Any) -> Record:
        """Return one of them as the library would have passed it on."""
        message: Record = message_of(self.tp, record, self.generation_id)
        return message


def message_of(tp: Any, record: Any, generation_id: int | None, of: type[ConsumerMessage] = ConsumerMessage) -> Any:
    """Return the library's message of a packed record; `of` is the class."""
    return of(
        tp.topic,
        tp.partition,
        record.offset,
        None if record.timestamp is None else record.timestamp / 1000,
        record.timestamp_type,
        record.headers,
        record.key,
        record.value,
        record.checksum,
        tp=tp,
        generation_id=generation_id,
    )


class Thread(driver.AIOKafkaConsumerThread):  # type: ignore[misc]
    """The library's client in its thread, which unpacks only a batch per partition and leaves the rest packed.

    The library unpacks everything that was fetched: of a backlog of small records that is hundreds of MB per partition.
    Its client reads no aborted transaction: `highwater repair-log` fills a log with these.
    """

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._isolation_level = "read_committed"  # noqa: SLF001 (the library sets it for exactly_once only)
        client = consumer._client  # noqa: SLF001 (the client is not to be had otherwise)
        client.send = partial(refused_as_a_whole, client.send)
        return consumer

    async def _fetch_records(
        self,
        consumer: Any,
        active_partitions: Any,
        timeout: float | None = None,  # noqa: ASYNC109 (the library's)
        max_records: int | None = None,
    ) -> Any:
        if not self.consumer.flow_active or not active_partitions:
            return {}
        fetcher = consumer._fetcher  # noqa: SLF001 (as the library does; the versions are pinned)
        if consumer._closed or fetcher._closed:  # noqa: SLF001
            raise ConsumerStoppedError
        ends_at = monotonic_seconds() + (timeout or 0)
        with fetcher._subscriptions.fetch_context():  # noqa: SLF001
            while True:
                if fetcher._subscriptions.reassignment_in_progress:  # noqa: SLF001
                    await fetcher._subscriptions.wait_for_assignment()  # noqa: SLF001
                found = await _unpacked(
                    fetcher, active_partitions, self.consumer.folded_topics, self.consumer.app.tables.changelog_topics
                )
                left = ends_at - monotonic_seconds()
                if found or left <= 0:
                    return found
                waiter = fetcher._create_fetch_waiter()  # noqa: SLF001
                done, _ = await asyncio.wait([waiter], timeout=left)
                if not done or fetcher._closed:  # noqa: SLF001
                    waiter.cancel()
                    return {}
                waiter.result()  # a refusal of the broker


async def refused_as_a_whole(send: Callable[..., Awaitable[Any]], node_id: Any, request: Any, **options: Any) -> Any:
    """Return the answer to a request; a refusal of a whole request for committed offsets is raised, and the client repeats it.

    The client checks the errors of partitions only. A coordinator that is loading or has moved answers without partitions (from
    version 2 of OffsetFetch on, KIP-88), and the client would take that for a group without committed offsets.
    """
    answer = await send(node_id, request, **options)
    if request.API_KEY == OffsetFetchRequest.API_KEY and getattr(answer, "error_code", 0):  # version 1 has none
        raise for_code(answer.error_code)
    return answer


async def _unpacked(
    fetcher: Any, partitions: Any, folded_topics: Collection[str], changelogs: Collection[str]
) -> dict[Any, Any]:
    """Return fetched records by partition; an error of the broker is raised once no other records are found.

    Those of folded topics stay as the parser returns them, without a client object for each. A changelog has no committed
    offset: it has no position from its assignment until recovery seeks, and a fetch that began earlier may ask for it.
    """
    found: dict[Any, Any] = {}
    packed = fetcher._records  # noqa: SLF001
    for place in list(packed):
        if place not in partitions:
            if not fetcher._subscriptions.is_assigned(place):  # noqa: SLF001
                del packed[place]
            continue
        fetched = packed[place]
        if place.topic in changelogs and isinstance(fetched, FetchError) and _is_without_offset(fetched):
            continue
        if not isinstance(fetched, FetchResult):
            return found or await fetcher.fetched_records({place})
        if place.topic in folded_topics and fetched.has_more():
            fetched._partition_records._consumer_record = _as_it_is  # noqa: SLF001 (the client has no setting for it)
        records = fetched.getall(BATCH_RECORDS_MAX)
        if not fetched.has_more():
            del packed[place]
            fetcher._notify(fetcher._wait_consume_future)  # noqa: SLF001 (the next fetch of it may begin)
        if records:
            found[place] = records
    return found


def _is_without_offset(failed: Any) -> bool:
    return isinstance(failed._error, NoOffsetForPartitionError)  # noqa: SLF001 (the client has no other door)


def _as_it_is(_place: Any, record: Any) -> Any:
    return record


class FoldingConsumer(driver.Consumer):  # type: ignore[misc]
    """Passes on batches of the topics that its transport names in `folded_topics`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._handover = Handover(self.transport.folded_topics)

    @property
    def folded_topics(self) -> Collection[str]:
        """Return the topics whose records come in batches."""
        return self._handover.topics

    def _new_consumer_thread(self) -> Any:
        return Thread(self, loop=self.loop, beacon=self.beacon)

    async def _getmany(self, active_partitions: Any, timeout: float) -> Any:  # noqa: ASYNC109 (the name is the library's)
        full = self._handover.full(self._acked_index)
        if not full:
            return await super()._getmany(active_partitions, timeout)
        wait, others = min(timeout, _FULL_FETCH_SECONDS_MAX), active_partitions - full
        if others:
            return await super()._getmany(others, wait)
        await asyncio.sleep(wait)  # the library means all partitions by none
        return {}

    def _in_batches(self, records: Mapping[Any, Sequence[Any]]) -> Mapping[Any, Any]:
        """Return fetched records by partition, those of folded topics in batches."""
        topics = self._handover.topics
        return {place: in_batches(found) if place.topic in topics else found for place, found in records.items()}

    def _to_message(self, tp: Any, record: Any) -> Any:
        """Return what the library passes to agents for a record, or for a batch."""
        if tp.topic not in self._handover.topics:
            return super()._to_message(tp, record)
        generation_id = self.app.consumer_generation_id
        if not isinstance(record, list):
            self._handover.note(tp, record.offset, 1)
            return message_of(tp, record, generation_id)
        self._handover.note(tp, record[-1].offset, len(record))
        message = message_of(tp, record[-1], generation_id, BatchMessage)
        message.records = record
        return message

    async def _add_gap(self, tp: Any, offset_from: int, offset_to: int) -> None:
        """Note offsets without a message. Those within a batch are not a gap."""
        if tp.topic not in self._handover.topics:
            await super()._add_gap(tp, offset_from, offset_to)

    def _new_offset(self, tp: Any) -> int | None:
        """Return the offset to commit; None if there is nothing new."""
        if tp.topic not in self._handover.topics:
            found: int | None = super()._new_offset(tp)
            return found
        following = self._handover.following(tp, self._acked_index[tp])
        if following is not None:
            self._acked[tp] = [offset for offset in self._acked[tp] if offset >= following]
            self._acked_index[tp] = set(self._acked[tp])
        return following

    async def perform_seek(self) -> None:
        """Seek to the committed offsets; the flow is stopped."""
        self._handover.forget()
        await super().perform_seek()
