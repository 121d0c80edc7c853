"""An answer that ends early: over a connection it is cut off and logged once; before it begins it is an error as any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from highwater.api.core.streamed import CUT_OFF, StreamedAnswer
from highwater.schemas.errors import UnavailableError


async def ending(after: int) -> AsyncIterator[bytes]:
    """Some chunks, and an error."""
    for _ in range(after):
        yield b"chunk"
    raise UnavailableError("Kafka has gone")


def sent(chunks: AsyncIterator[bytes], scope: dict[str, Any]) -> list[Any]:
    """The messages of an answer."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    whole = {"type": "http", "path": "/api/x", "asgi": {"spec_version": "2.3"}, **scope}
    asyncio.run(StreamedAnswer(chunks)(whole, receive, send))
    return messages


def test_an_answer_that_fails_is_cut_off() -> None:
    """Its connection ends without the end of the answer; one line says which and why."""
    cut: list[bool] = []
    with capture_logs() as logs:
        messages = sent(ending(2), {CUT_OFF: lambda: cut.append(True)})
    assert (cut, [one.get("more_body") for one in messages]) == ([True], [None, True, True])
    assert [(one["event"], one["path"], one["reason"]) for one in logs] == [
        ("an answer was cut off", "/api/x", "Kafka has gone")
    ]


def test_without_a_connection_the_error_is_raised() -> None:
    """Pages that read the API inside the process see it."""
    with pytest.raises(UnavailableError):
        sent(ending(1), {})


def test_a_whole_answer_is_not_cut_off() -> None:
    """Nothing is called."""

    async def whole() -> AsyncIterator[bytes]:
        yield b"all"

    cut: list[bool] = []
    messages = sent(whole(), {CUT_OFF: lambda: cut.append(True)})
    assert (cut, messages[-1]["more_body"]) == ([], False)
