"""Answers while they are written, sent to the sockets that request them (`?deltas=true`): one reader of Redis per
process.

Invariants. A delta goes only to its own user's sockets, and never after the answer itself. A slow socket gets more at
once, and is never closed because of deltas: they are not part of a resume.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import orjson

from highwater.api.queries.stream import Subscriber
from highwater.connectors.queries.deltas import BEGINNING, DeltaReader
from highwater.connectors.redis.link import RedisAwayError
from highwater.streams.queries.deltas import Delta, Place, Written, delta_after, with_piece
from highwater.streams.telemetry import get_log

# A reader sees no steps of a tenth of a second; a thousand users cost Redis 10,000 empty reads per second.
POLL_SECONDS = 0.1
# While Redis is unavailable: as often as the link itself checks.
_AWAY_SECONDS = 1.0
_log = get_log("sockets")


class _User:
    """The state of one user, and how much each socket has received."""

    def __init__(self) -> None:
        self.after = BEGINNING
        self.is_read = False
        self.written: Written | None = None
        self.sockets: dict[Subscriber, Place | None] = {}


class DeltaHub:
    """Reads while there are listeners."""

    def __init__(self, reader: DeltaReader) -> None:
        self._reader = reader
        self._users: dict[str, _User] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_away = False

    @contextlib.asynccontextmanager
    async def listening(self, subscriber: Subscriber) -> AsyncIterator[None]:
        """Send a socket the text, from the beginning of the answer that is being written."""
        user = self._users.setdefault(subscriber.user_id, _User())
        user.sockets[subscriber] = _ended_place(user.written)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="answer-deltas")
        try:
            yield
        finally:
            del user.sockets[subscriber]
            if not user.sockets:
                del self._users[subscriber.user_id]
            if not self._users and self._task is not None:
                self._task.cancel()
                self._task = None

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._read()
            except RedisAwayError as error:
                if not self._is_away:
                    _log.warning("deltas are not sent", reason=str(error))
                self._is_away = True
                await asyncio.sleep(_AWAY_SECONDS)
            except Exception as error:  # noqa: BLE001 - logged; answers arrive without deltas, and the next read may succeed
                _log.error("deltas could not be read", error=repr(error), exc_info=True)
                await asyncio.sleep(_AWAY_SECONDS)
            else:
                self._is_away = False
                await asyncio.sleep(POLL_SECONDS)

    async def _read(self) -> None:
        users = list(self._users.items())
        found = await self._reader.read([(user_id, user.after) for user_id, user in users])
        for (_, user), entries in zip(users, found, strict=True):
            for user.after, piece in entries:
                user.written = with_piece(user.written, piece)
            if not user.is_read:  # answers that ended before the first listener are not sent
                user.sockets = dict.fromkeys(user.sockets, _ended_place(user.written))
                user.is_read = True
            for subscriber, place in user.sockets.items():
                delta = delta_after(place, user.written)
                if delta is not None and subscriber.offer_delta(delta.after.request_id, _message(delta)):
                    user.sockets[subscriber] = delta.after


def _ended_place(written: Written | None) -> Place | None:
    """Return the place of a new socket: after an answer whose call has ended, before any other."""
    if written is None or not written.has_ended:
        return None
    return Place(written.request_id, written.epoch, written.attempt, len(written.text))


def _message(delta: Delta) -> str:
    after = delta.after
    return orjson.dumps(
        {
            "type": "delta",
            "request_id": after.request_id,
            "attempt": after.attempt,
            "from": delta.start,
            "text": delta.text,
        }
    ).decode()
