"""A connection that became a socket, under limits: uvicorn's protocol, counted as the connection that it was (`protocol.py`)."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from highwater.api.core.connections import Connections

# Pieces of one message of a socket; browsers send one. Empty pieces have no bytes that a limit of bytes would count.
_PIECES_MAX = 1_024


class LimitedSocket(WebSocketsSansIOProtocol):
    """One connection that became a socket; `ws_max_size` bounds the bytes of a message, this its pieces."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._counted: tuple[Connections, str] | None = None

    def counted_as(self, connections: Connections, address: str) -> None:
        """It goes on being counted there under this address until it ends."""
        self._counted = connections, address

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of it."""
        if self._counted is not None:
            connections, address = self._counted
            connections.leave(address)
            self._counted = None
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
