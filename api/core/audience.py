"""The listeners of a hub in this process: counted before they are authenticated, limited in number, and notified when
the server stops.

Invariant: a hub ends when all listeners have left, or after a short wait; nobody joins it once it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator

from prometheus_client import Gauge
from starlette.websockets import WebSocket, WebSocketDisconnect

from highwater.api.core.errors import ProblemError
from highwater.api.core.places import Places
from highwater.api.core.sockets import (
    FAILED,
    GOING_AWAY,
    INTERNAL_ERROR,
    Closable,
    EndingError,
    close_with_reason,
    code_of,
)
from highwater.schemas.errors import InvalidEventError, UnavailableError
from highwater.streams.telemetry import get_log

# How long a hub that ends waits for its notified listeners to leave.
LEAVE_SECONDS_MAX = 2.0

_log = get_log("sockets")


class Audience:
    """The listeners of one hub."""

    def __init__(self, what: str, count_max: int, gauge: Gauge | None = None) -> None:
        """`what` describes the listeners in errors, as in "too many sockets are open"; `gauge` shows their number."""
        self.count = 0
        self.is_ending = False
        self._what = what
        self._count_max = count_max
        # Of those that are authenticated, by their callers.
        self.places = Places(what, count_max)
        self._gauge = gauge
        self._all_left = asyncio.Event()
        self._all_left.set()

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count one listener while the block runs.

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
        """Serve one socket; an error closes it with the error's code."""
        with contextlib.suppress(WebSocketDisconnect):
            try:
                with self.admitted():
                    await run()
            except (ProblemError, InvalidEventError, UnavailableError, EndingError) as error:
                await close_with_reason(websocket, code_of(error), str(error))

    def check_room(self) -> None:
        """Refuse a listener above the limit.

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
        """End the listeners, and wait briefly until they have been notified."""
        self.is_ending = True
        for listener in list(listeners):
            listener.close(GOING_AWAY, "the server stops")
        try:
            await asyncio.wait_for(self._all_left.wait(), LEAVE_SECONDS_MAX)
        except TimeoutError:
            _log.warning("listeners were cut", what=self._what, count=self.count)


def fail(listeners: Iterable[Closable]) -> None:
    """End the listeners because their hub failed and would send nothing more."""
    for listener in list(listeners):
        listener.close(INTERNAL_ERROR, FAILED)
