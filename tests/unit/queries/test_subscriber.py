"""One socket as the hub sees it: pieces of an answer beside the answers themselves."""

from __future__ import annotations

import asyncio

from highwater.api.queries.stream import WAITING_MAX, Ended, Subscriber


def _ended(request_id: str, offset: int) -> Ended:
    return Ended(offset, request_id, "u", "COMPLETED", None)


def test_no_piece_comes_behind_its_answer():
    """Those of the next answer do."""

    async def published() -> list[str]:
        socket = Subscriber("u", 0, 0, is_live=True)
        socket.offer_delta("first", "piece 1")
        socket.offer(_ended("first", 4), "answer 1")
        assert socket.offer_delta("first", "piece 2")
        socket.offer_delta("second", "piece 3")
        return [socket.waiting.get_nowait() for _ in range(socket.waiting.qsize())]

    assert asyncio.run(published()) == ["piece 1", "answer 1", "piece 3"]


def test_pieces_never_send_a_slow_socket_away():
    """They wait, and the answers find room."""

    async def states() -> tuple[bool, int, bool]:
        socket = Subscriber("u", 0, 0, is_live=True)
        while socket.offer_delta("r", "piece"):
            pass
        pieces = socket.waiting.qsize()
        for offset in range(WAITING_MAX - pieces):
            socket.offer(_ended(f"r{offset}", offset), "answer")
        return socket.offer_delta("r", "piece"), pieces, socket.closed.done()

    assert asyncio.run(states()) == (False, WAITING_MAX // 2, False)
