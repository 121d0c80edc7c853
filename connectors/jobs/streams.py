"""The streams of jobs in Redis for their watchers: entries after an id, wake-ups, and open sockets.

Invariants. Reports reach watchers through the stream, by id; what is broadcast only wakes them and may be lost (R2.22).
Data that Redis has lost is not tracked here: a missing entry is noticed by its number, since those of a job have no
gaps.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from highwater.connectors.redis.keys import (
    PROGRESS,
    PROGRESS_BROADCAST,
    PROGRESS_ENTRIES_MAX,
    SOCKET_SECONDS,
    SOCKETS,
    key,
)
from highwater.connectors.redis.link import RedisAwayError, RedisLink

# How long a wait for a wake-up lasts before it is repeated; nothing depends on it.
_LISTEN_SECONDS = 5.0


class Entry(NamedTuple):
    """An entry of a job's stream under the id `{seq}-0`."""

    seq: int
    fields: Mapping[str, str]


class Reading(NamedTuple):
    """The entries of a stream after a place, and whether the stream exists."""

    entries: Sequence[Entry]
    is_there: bool


class JobStreams:
    """Reads the streams."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def read(self, places: Sequence[tuple[str, int]]) -> list[Reading]:
        """Return the entries of each job's stream after a number, in order, in one round trip.

        Raises:
            RedisAwayError: Redis did not answer.
        """
        pipe = self._link.require().pipeline(transaction=False)
        for job_id, after in places:
            name = key(PROGRESS, job_id=job_id)
            pipe.xrange(name, f"({after}-0", "+", PROGRESS_ENTRIES_MAX)
            pipe.exists(name)
        found = await self._link.run(pipe.execute())
        return [
            Reading([_entry(*raw) for raw in entries], bool(is_there))
            for entries, is_there in zip(found[::2], found[1::2], strict=True)
        ]

    async def wakes(self) -> AsyncGenerator[str | None, None]:
        """Yield jobs that have new entries; None once at the beginning: earlier wake-ups were missed.

        Raises:
            RedisAwayError: wake-ups no longer arrive.
        """
        pubsub = self._link.require().pubsub()
        try:
            await self._link.run(pubsub.subscribe(PROGRESS_BROADCAST))
            while True:
                message = await self._link.run(pubsub.get_message(timeout=_LISTEN_SECONDS))
                if message is not None:
                    # The first one confirms the subscription: from here on nothing is missed.
                    yield _job_id(message["data"]) if message["type"] == "message" else None
        finally:
            # It must be closed in any state of the connection.
            with contextlib.suppress(RedisAwayError):
                await self._link.run(pubsub.aclose())

    async def beat(self, members: Mapping[str, Sequence[str]], now_ms: int) -> None:
        """Report that these sockets are still open, by user; those not reported for `SOCKET_SECONDS` are removed
        (R2.23).

        Raises:
            RedisAwayError: Redis did not store it.
        """
        pipe = self._link.require().pipeline(transaction=False)
        for user_id, names in members.items():
            zset = key(SOCKETS, user_id=user_id)
            pipe.zadd(zset, dict.fromkeys(names, now_ms))
            pipe.zremrangebyscore(zset, "-inf", f"({now_ms - SOCKET_SECONDS * 1000}")
            pipe.expire(zset, SOCKET_SECONDS)
        await self._link.run(pipe.execute())

    async def open_sockets(self, now_ms: int) -> dict[str, list[str]]:
        """Return the sockets that were reported within `SOCKET_SECONDS`, by user; looks through all keys.

        Raises:
            RedisAwayError: Redis did not answer.
        """
        prefix, found = key(SOCKETS, user_id=""), dict[str, list[str]]()
        async for names in self._link.names(key(SOCKETS, user_id="*")):
            commands = [("ZRANGEBYSCORE", name, now_ms - SOCKET_SECONDS * 1000, "+inf") for name in names]
            for name, members in zip(names, await self._link.replies(commands), strict=True):
                if not isinstance(members, Exception):  # a key of another type
                    found[name.decode().removeprefix(prefix)] = [member.decode() for member in members]
        return found

    async def gone(self, user_id: str, member: str) -> None:
        """Remove a closed socket.

        Raises:
            RedisAwayError: it expires by itself.
        """
        await self._link.run(self._link.require().zrem(key(SOCKETS, user_id=user_id), member))


def _entry(entry_id: bytes, fields: Mapping[bytes, bytes]) -> Entry:
    seq = int(entry_id.partition(b"-")[0])
    return Entry(seq, {name.decode(): value.decode() for name, value in fields.items()})


def _job_id(data: Any) -> str | None:
    """Return the job that a wake-up names; None for a message from another sender: then all are checked."""
    try:
        return str(orjson.loads(data)["job_id"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
