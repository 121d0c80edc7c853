"""The listeners of a hub of this process: counted before it is known who they are, bounded, and told when the server stops.

Invariant: a hub ends when everyone has left it, or after a moment; nobody comes in once it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator

from prometheus_client import Gauge
from starlette.websockets import WebSocket, WebSocketDisconnect

from highwater.api.core.errors import ProblemError
from highwater.api.core.sockets import (
    FAILED,
    GOING_AWAY,
    INTERNAL_ERROR,
    Closable,
    EndingError,
    code_of,
    send_away,
)
from highwater.schemas.errors import InvalidEventError, UnavailableError
from highwater.streams.telemetry import get_log

# How long a hub that ends waits for those who were told to leave.
LEAVE_SECONDS_MAX = 2.0

_log = get_log("sockets")


class Audience:
    """The listeners of one hub."""

    def __init__(self, what: str, count_max: int, gauge: Gauge | None = None) -> None:
        """`what` says of them what they do, as in "too many sockets are open"; `gauge` shows how many there are."""
        self.count = 0
        self.is_ending = False
        self._what = what
        self._count_max = count_max
        self._gauge = gauge
        self._all_left = asyncio.Event()
        self._all_left.set()

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """One of them.

        Raises:
            UnavailableError: there are too many.
            EndingError: the server stops.
        """
        self.check_room()
        self._become(self.count + 1)
        try:
            yield
        finally:
            self._become(self.count - 1)

    async def serve(self, websocket: WebSocket, run: Callable[[], Awaitable[None]]) -> None:
        """One socket of theirs; whatever refuses it closes it with its code."""
        with contextlib.suppress(WebSocketDisconnect):
            try:
                with self.admitted():
                    await run()
            except (ProblemError, InvalidEventError, UnavailableError, EndingError) as error:
                await send_away(websocket, code_of(error), str(error))

    def check_room(self) -> None:
        """Refuse one more than there may be.

        Raises:
            UnavailableError: there are too many.
            EndingError: the server stops.
        """
        if self.is_ending:
            raise EndingError
        if self.count >= self._count_max:
            raise UnavailableError(f"too many {self._what}")

    def _become(self, count: int) -> None:
        self.count = count
        if self._gauge is not None:
            self._gauge.set(count)
        if count:
            self._all_left.clear()
        else:
            self._all_left.set()

    async def end(self, listeners: Iterable[Closable]) -> None:
        """End those who listen, and wait a moment for them to have been told."""
        self.is_ending = True
        for listener in list(listeners):
            listener.close(GOING_AWAY, "the server stops")
        try:
            await asyncio.wait_for(self._all_left.wait(), LEAVE_SECONDS_MAX)
        except TimeoutError:
            _log.warning("listeners were cut", what=self._what, count=self.count)


def fail(listeners: Iterable[Closable]) -> None:
    """End those who would be told nothing more: their hub failed."""
    for listener in list(listeners):
        listener.close(INTERNAL_ERROR, FAILED)
