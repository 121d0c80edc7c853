"""Answers that are sent while they are made: downloads and streams.

Invariant: an answer that cannot be completed is cut off. The connection is closed before the end of the answer, so that
the client sees that something is missing, and the log has one line with the reason.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.responses import StreamingResponse  # noqa: TID251 - of which this is one
from starlette.types import Message, Receive, Scope, Send

from highwater.schemas.errors import HighwaterError
from highwater.streams.telemetry import get_log

# In the scope of a request that came over a connection: a call closes it after what was sent.
CUT_OFF = "highwater.cut_off"
_log = get_log("api")


async def until_gone(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


class StreamedAnswer(StreamingResponse):
    """A streamed answer that is cut off if one of our errors ends it early."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it.

        Raises:
            HighwaterError: nothing was sent yet, or there is no connection that can be cut off.
        """
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        cut_off: Callable[[], None] | None = scope.get(CUT_OFF)
        try:
            await super().__call__(scope, receive, noted)
        except HighwaterError as error:
            if not has_begun or cut_off is None:
                raise
            _log.warning("an answer was cut off", path=scope["path"], reason=str(error))
            cut_off()
