"""A connection that became a socket, under limits: uvicorn's protocol, counted as the connection that it was (`protocol.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

if TYPE_CHECKING:
    from highwater.api.core.protocol import LimitedConfig

# Pieces of one message of a socket; browsers send one. Empty pieces have no bytes that a limit of bytes would count.
_PIECES_MAX = 1_024


class LimitedSocket(WebSocketsSansIOProtocol):
    """One connection that became a socket; `ws_max_size` bounds the bytes of a message, this its pieces."""

    config: LimitedConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._address: str | None = None

    def counted_as(self, address: str) -> None:
        """It goes on being counted under this address until it ends."""
        self._address = address

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of it."""
        if self._address is not None:
            self.config.counted.leave(self._address)
            self._address = None
        super().connection_lost(exc)

    def handle_cont(self, event: Frame) -> None:
        """A further piece of a message."""
        if self.close_sent:
            return
        if len(self.frames) >= _PIECES_MAX:
            self.conn.fail(1009, "a message of too many pieces")
            self.handle_parser_exception()
            return
        super().handle_cont(event)
