"""Waits while a dependency is unavailable, or while there is nothing to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from highwater.schemas.errors import UnavailableError
from highwater.streams.retry import unavailable_seconds

T = TypeVar("T")


async def retry_until_available(read: Callable[[], Awaitable[T]]) -> T:
    """Retry the read until the dependency answers (R1.31)."""
    attempt = 0
    while True:
        try:
            return await read()
        except UnavailableError:
            attempt += 1
            await asyncio.sleep(unavailable_seconds(attempt))


async def pause_unless(stop: asyncio.Event, wake: asyncio.Event, seconds: float) -> None:
    """Wait for a time, or until there is work, or until `stop` is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in (stop, wake)]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait for a time, or until `stop` is set."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
