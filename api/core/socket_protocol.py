"""A WebSocket connection under limits: uvicorn's protocol, still counted as the connection it was before (`protocol.py`)."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from highwater.api.core.connections import Connections

# Fragments of one message; browsers send one. Empty fragments have no bytes that a limit of bytes would count.
_PIECES_MAX = 1_024


class LimitedSocket(WebSocketsSansIOProtocol):
    """One WebSocket connection; `ws_max_size` limits the bytes of a message, this class its fragments."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._counted: tuple[Connections, str] | None = None

    def counted_as(self, connections: Connections, address: str) -> None:
        """Keep counting the connection under this address until it ends."""
        self._counted = connections, address

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection."""
        if self._counted is not None:
            connections, address = self._counted
            connections.leave(address)
            self._counted = None
        super().connection_lost(exc)

    def handle_cont(self, event: Frame) -> None:
        """Accept a further fragment of a message."""
        if self.close_sent:
            return
        if len(self.frames) >= _PIECES_MAX:
            self.conn.fail(1009, "a message of too many pieces")
            self.handle_parser_exception()
            return
        super().handle_cont(event)
