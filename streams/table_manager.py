"""The stream library's tables, restored by our own reader.

Invariant: the library decides which partitions are restored and what is refused; our reader reads up to the end that
the library has requested, so that it finds nothing left to read. Its own reader processes an event at a time (72 us per
record; ours 2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from faust.tables import TableManager
from faust.tables import recovery as library
from faust.tables import table as library_table

from highwater.streams.clock import monotonic_seconds
from highwater.streams.restoring import (
    BeginningMovedError,
    ReadChangelogs,
    Restoration,
    Span,
    TombstonesGoneError,
    emptied,
    progress_text,
)
from highwater.streams.telemetry import get_log

# As the offset up to which a store goes: no changelog has it, so all rows are appended at the next start (`_append_lost`).
_BEHIND_ANY_END = 2**62
# How often a restoration is reported.
_REPORT_SECONDS = 5.0

_log = get_log("worker")


class Recovery(library.Recovery):  # type: ignore[misc]
    """The library's recovery, with everything read by `Restoration` before the library reads the rest."""

    read_changelogs: ReadChangelogs
    _restoration: Restoration | None = None

    def restoring(self) -> str | None:
        """Return what is being restored, for people; None if nothing is."""
        running = self._restoration
        return None if running is None else progress_text(running.remaining, running.seconds_left(monotonic_seconds()))

    def on_partitions_revoked(self, revoked: set[Any]) -> None:
        """Stop writing: the stores are about to be closed."""
        self._stop_restoration()
        super().on_partitions_revoked(revoked)

    async def on_stop(self) -> None:
        """Stop: the worker ends."""
        self._stop_restoration()
        await super().on_stop()

    async def _wait(self, coro: Awaitable[Any], timeout: float | None = None) -> None:  # noqa: ASYNC109 (the library's)
        """Wait without the library's limit of 90 s: a restoration may take longer, and the watch ends one without progress."""
        await super()._wait(coro, timeout=None)

    async def _build_offsets(self, consumer: Any, tps: set[Any], destination: Any, title: str) -> None:
        await super()._build_offsets(consumer, tps, destination, title)
        if title != "active":
            return
        await self._append_lost(consumer, tps, destination, title)
        while not await self._restore(tps, destination):
            await self._build_highwaters(consumer, tps, self.active_highwaters, title)
            await super()._build_offsets(consumer, tps, destination, title)
        # Deletions in the meantime are noted as well: requesting beginnings notes them (`streams/app.py`).
        await consumer.earliest_offsets(*tps)

    async def _append_lost(self, consumer: Any, tps: set[Any], offsets: Any, title: str) -> None:
        """Append all rows of a store to a changelog that ends before it: Kafka lost the changelog's tail.

        The library would refuse the store, or, if nothing is left of the changelog, leave out its rows the next time.
        """
        for tp in sorted(tp for tp in tps if offsets[tp] > self.active_highwaters.get(tp, offsets[tp])):
            data = self.tp_to_table[tp].data
            store = data._db_for_partition(tp.partition)  # noqa: SLF001 (the library's door)
            rows = [(key, value) for key, value in store.items() if key != data.offset_key]
            _log.error("changelog_truncated", changelog=tp.topic, partition=tp.partition, rows_appended=len(rows))
            sent = [await self.app.producer.send(tp.topic, key, value, tp.partition, None, {}) for key, value in rows]
            for acknowledged in sent:
                await acknowledged
            await self._build_highwaters(consumer, {tp}, self.active_highwaters, title)
            offsets[tp] = self.active_highwaters[tp]
            store.put(data.offset_key, b"%d" % offsets[tp])

    async def _restore(self, tps: set[Any], offsets: Any) -> bool:
        """Read what the stores lack; return False if a log no longer has what was to be read: its bounds must be
        requested again.

        Raises:
            RebalanceAgain: it was stopped.
        """
        spans = {tp: Span(offsets[tp] + 1, self.active_highwaters[tp]) for tp in tps if tp in self.active_highwaters}
        spans = {tp: span for tp, span in spans.items() if span.first <= span.last}
        if not spans:
            return True
        stores = {tp: self.tp_to_table[tp].data for tp in spans}
        restoration = Restoration(
            read=self.read_changelogs,
            spans=spans,
            stores={tp: store._db_for_partition(tp.partition) for tp, store in stores.items()},  # noqa: SLF001 (the library's door)
            offset_key=next(iter(stores.values())).offset_key,
            offsets=offsets,
        )
        self._restoration = restoration
        try:
            is_read = await self._run(restoration)
        except BeginningMovedError as error:
            _log.warning("changelog_moved", reason=str(error))
            return False
        except TombstonesGoneError as error:
            _log.warning("stores_outlived", reason=str(error))
            for tp, beginning in error.beginnings.items():
                emptied(restoration.stores[tp])
                offsets[tp] = beginning - 1
            return False
        finally:
            restoration.stop()
            self._restoration = None
        if not is_read:
            raise library.RebalanceAgain
        return True

    async def _run(self, restoration: Restoration) -> bool:
        _log.info("tables_restoring", records=restoration.total, partitions=len(restoration.spans))
        thread = ThreadPoolExecutor(1, thread_name_prefix="restore")
        running = asyncio.get_running_loop().run_in_executor(thread, restoration.run)
        thread.shutdown(wait=False)
        while not (await asyncio.wait({running}, timeout=_REPORT_SECONDS))[0]:
            _log.info("tables_restoring", progress=self.restoring())
        is_read = running.result()
        seconds = monotonic_seconds() - restoration.began_seconds
        _log.info(
            "tables_restored" if is_read else "restoration_stopped",
            records=restoration.total,
            seconds=round(seconds, 3),
        )
        return is_read

    def _stop_restoration(self) -> None:
        if self._restoration is not None:
            self._restoration.stop()


class Table(library_table.Table):  # type: ignore[misc]
    """The library's table, which ends the worker if its changelog lost rows: it gives an offset a second time then.

    The library would note the lower offset, and a worker without this store would restore the table without these rows.
    """

    fail: Callable[[str], None] | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._acknowledged: dict[Any, int] = {}
        self._truncated: set[Any] = set()

    def _on_changelog_sent(self, fut: Any) -> None:
        place, offset = fut.result().topic_partition, fut.result().offset
        # Below 0: the broker had the record already, and does not say where.
        if place in self._truncated or offset < 0:
            return
        if offset > self._acknowledged.get(place, -1):
            self._acknowledged[place] = offset
            super()._on_changelog_sent(fut)
            return
        self._truncated.add(place)
        self.data.set_persisted_offset(place, _BEHIND_ANY_END)
        if self.fail is not None:
            self.fail(
                f"Kafka lost the tail of {place.topic}/{place.partition}, which gave offset {offset} a second time; the next"
                " start appends the rows of the table"
            )


class Tables(TableManager):  # type: ignore[misc]
    """The library's table manager with this recovery, whose tables are all declared when it starts."""

    _recovery: Recovery | None

    def __init__(self, *args: Any, read_changelogs: ReadChangelogs, **options: Any) -> None:
        super().__init__(*args, **options)
        self._read_changelogs = read_changelogs

    @property
    def recovery(self) -> Recovery:
        """Return the recovery, created at the first use."""
        recovery: Recovery | None = self._recovery
        if recovery is None:
            recovery = self._recovery = Recovery(self.app, self, beacon=self.beacon, loop=self.loop)
            recovery.read_changelogs = self._read_changelogs
        return recovery

    async def on_start(self) -> None:
        """Start without the library's wait of a second for late table declarations."""
        if not self.should_stop:
            await self._update_channels()
            await self.recovery.start()
