"""Answers while they are written, in Redis: workers add pieces, each process of the API reads those of its users.

Invariants. This data may be lost: without Redis there are no deltas and the answer still arrives. No writer of an
answer waits for Redis: pieces that arrive meanwhile are added together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from highwater.connectors.redis.keys import DELTA_ENTRIES_MAX, DELTA_SECONDS, DELTAS, key
from highwater.connectors.redis.link import RedisAwayError, RedisLink
from highwater.streams.queries.deltas import Piece
from highwater.streams.queries.runs import Run
from highwater.streams.telemetry import get_log

_log = get_log("queries")
# Before the first entry of any stream.
BEGINNING = "0-0"


class DeltaWriter:
    """Adds pieces to their user's stream."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, run: Run) -> _Writing:
        """Return the receiver of the pieces of the run's current call."""
        return _Writing(self._link, run, self._tasks)

    async def close(self) -> None:
        """Stop adding: readers have the answer, or the next worker's pieces."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Writing:
    """One call; called with each piece."""

    def __init__(self, link: RedisLink, run: Run, tasks: set[asyncio.Task[None]]) -> None:
        self._link = link
        self._run = run
        self._tasks = tasks
        self._waiting = ""
        self._start = 0
        self._has_ended = False
        self._task: asyncio.Task[None] | None = None

    def __call__(self, text: str) -> None:
        self._waiting += text
        self._wake()

    def end(self) -> None:
        """Mark the end of the call, for every outcome."""
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._add(), name="deltas")
            self._tasks.add(self._task)
            self._task.add_done_callback(self._tasks.discard)

    async def _add(self) -> None:
        try:
            is_end = False
            while self._waiting or (self._has_ended and not is_end):
                text, self._waiting, is_end = self._waiting, "", self._has_ended
                await self._add_one(text, is_end=is_end)
                self._start += len(text)
        except RedisAwayError as error:
            # A reader would see a gap; the task stays, so that this call adds and logs nothing more.
            _log.warning("deltas_lost", run=self._run.id, reason=str(error))
            return
        self._task = None

    async def _add_one(self, text: str, *, is_end: bool) -> None:
        run, name = self._run, key(DELTAS, user_id=self._run.user_id)
        fields = {"request_id": run.id, "epoch": run.epoch, "attempt": run.attempt, "start": self._start, "text": text}
        pipe = self._link.require().pipeline(transaction=False)
        pipe.xadd(name, fields | {"is_end": int(is_end)}, maxlen=DELTA_ENTRIES_MAX)
        pipe.expire(name, DELTA_SECONDS)
        await self._link.run(pipe.execute())


class DeltaReader:
    """Reads the streams of users."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def read(self, places: Sequence[tuple[str, str]]) -> list[list[tuple[str, Piece]]]:
        """Return the entries of each user's stream after an id, in one round trip: ids and pieces, in order.

        Raises:
            RedisAwayError: Redis did not answer.
        """
        pipe = self._link.require().pipeline(transaction=False)
        for user_id, after in places:
            pipe.xrange(key(DELTAS, user_id=user_id), f"({after}", "+", DELTA_ENTRIES_MAX)
        found = await self._link.run(pipe.execute())
        return [[(entry_id.decode(), _piece(fields)) for entry_id, fields in entries] for entries in found]


def _piece(fields: dict[bytes, bytes]) -> Piece:
    return Piece(
        fields[b"request_id"].decode(),
        int(fields[b"epoch"]),
        int(fields[b"attempt"]),
        int(fields[b"start"]),
        fields[b"text"].decode(),
        fields[b"is_end"] == b"1",
    )
