"""New versions of pages for those who have them open: one reader of `cache.version-bumped` per process, for all sockets.

Invariants. A socket receives names of pages and never their content, which its page then reads as its own visitor. The
first message, which names none, comes once the reader has its place in the log: a page that then reads everything
misses nothing. After Kafka was unavailable that message is sent again. A slow socket gets each name that waits for it
once, and blocks no other socket.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TypeAlias

from highwater.api.core.audience import Audience, fail
from highwater.api.core.changes import ChangeFeed
from highwater.schemas.codec import Codec
from highwater.schemas.errors import UnavailableError
from highwater.streams.telemetry import get_log

# Administrators and assistants of one installation with several pages each; everybody else polls.
LISTENERS_MAX = 256
# The pages of some forty seasons, of which one change touches a dozen; more at once are one "read everything".
KEYS_MAX = 500
# Finding the end of the log takes a few milliseconds; a page that waits longer polls, and connects again later.
START_SECONDS_MAX = 5.0
# Delay before the log is read again after Kafka was unavailable.
_AGAIN_SECONDS = 0.5

Patch: TypeAlias = "dict[str, str | int]"
_EVERYTHING: Patch = {"type": "patch"}
_log = get_log("pushes")


class Listener:
    """One open page; `may_read` decides which keys it receives."""

    def __init__(self, may_read: Callable[[str], bool]) -> None:
        self.may_read = may_read
        self.closed: tuple[int, str] | None = None
        self._versions: dict[str, int] | None = {}  # not sent yet; None: everything
        self._woken = asyncio.Event()

    def close(self, code: int, reason: str) -> None:
        """End the listener, and close its socket with this code; the first call counts."""
        self.closed = self.closed or (code, reason)
        self._woken.set()

    def note(self, key: str, version: int) -> None:
        """Note a new version."""
        if self._versions is None or not self.may_read(key):
            return
        self._versions[key] = version
        if len(self._versions) > KEYS_MAX:
            self._versions = None
        self._woken.set()

    def note_everything(self) -> None:
        """Note that any page may have changed."""
        self._versions = None
        self._woken.set()

    async def patches(self) -> AsyncGenerator[Patch, None]:
        """Yield what to send, until the listener is closed."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            versions, self._versions = self._versions, {}
            if self.closed is not None:
                return
            if versions is None:
                yield _EVERYTHING
            for key, version in (versions or {}).items():
                yield {"type": "patch", "key": key, "version": version}


class Pushes:
    """Reads the log while anybody listens."""

    def __init__(self, changes: ChangeFeed, codec: Callable[[], Codec], is_page: Callable[[str], bool]) -> None:
        """`is_page` returns whether a key is that of a page; `codec` returns the codec, or raises `UnavailableError`."""
        self._changes = changes
        self._codec = codec
        self._is_page = is_page
        self._listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._has_place = asyncio.Event()
        self.audience = Audience("pages of administrators are open", LISTENERS_MAX)

    @contextlib.contextmanager
    def listening(self, may_read: Callable[[str], bool]) -> Iterator[Listener]:
        """Yield a listener; call `started` before its socket is used."""
        listener = Listener(may_read)
        self._listeners.add(listener)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="pushes")
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self._stop()

    async def started(self, listener: Listener) -> None:
        """Wait until the reader has its place in the log, then have the listener read everything.

        Raises:
            UnavailableError: Kafka or the registry is unavailable.
        """
        try:
            await asyncio.wait_for(self._has_place.wait(), START_SECONDS_MAX)
        except TimeoutError:
            raise UnavailableError("changes cannot be read now; the page polls") from None
        listener.note_everything()

    async def end(self) -> None:
        """End every listener, and wait a moment until the clients are notified."""
        await self.audience.end(self._listeners)

    async def close(self) -> None:
        """Stop reading."""
        self.audience.is_ending = True
        task = self._task
        self._stop()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = None
        self._has_place.clear()

    async def _run(self) -> None:
        while True:
            try:
                await self._read()
            except UnavailableError as error:
                _log.info("changes are not pushed", reason=str(error))
            except Exception as error:  # noqa: BLE001 - logged, and ended for all: pages connect again
                _log.error("pushing changes failed", error=repr(error), exc_info=True)
                fail(self._listeners)
            self._has_place.clear()
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _read(self) -> None:
        codec = self._codec()
        places = await self._changes.end_places()
        self._has_place.set()
        for listener in self._listeners:
            listener.note_everything()
        async with contextlib.aclosing(self._changes.bumps(places, codec)) as lists:
            async for bumps in lists:
                for bump in bumps:
                    if bump.event is not None and self._is_page(bump.event["key"]):
                        for listener in self._listeners:
                            listener.note(bump.event["key"], bump.event["version"])
