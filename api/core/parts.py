"""Opens and watches the services that the API needs in the background, so that the API starts without them.

Routes that need an unavailable service answer 503; one log line reports its loss and one its recovery.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.streams.retry import RetryPolicy
from highwater.streams.telemetry import get_log

T = TypeVar("T")

# How soon a loss or recovery of a service is noticed; a check is one statement or one metadata request.
CHECK_SECONDS = 1.0
# Longest interval between attempts for a service that was never available, so that `up` is ready soon after its slowest
# service.
OPENING = RetryPolicy(first_ms=100, most_ms=1_000)

_log = get_log("api")


def _is_kept(_value: Any) -> bool:
    """Most clients reconnect by themselves."""
    return False


class Part(Generic[T]):
    """One service: `value` once it was opened, `ready` while it answers. If `is_lost` returns true, it is opened again."""

    def __init__(
        self,
        name: str,
        open_part: Callable[[], Awaitable[T]],
        check: Callable[[T], Awaitable[Any]],
        close: Callable[[T], Awaitable[Any]],
        check_seconds: float = CHECK_SECONDS,
        *,
        is_lost: Callable[[T], bool] = _is_kept,
    ) -> None:
        self.name = name
        self._open = open_part
        self._check = check
        self._close = close
        self._check_seconds = check_seconds
        self._is_lost = is_lost
        self._value: T | None = None
        self._task: asyncio.Task[None] | None = None
        self._reported = False
        self.ready = False
        self.reason = "it was not reached yet"

    def require(self) -> T:
        """Return the open service.

        Raises:
            UnavailableError: it does not answer.
        """
        if self._value is None or not self.ready:
            raise UnavailableError(f"{self.name} is unavailable: {self.reason}")
        return self._value

    def start(self) -> None:
        """Open and watch it in the background."""
        self._task = asyncio.create_task(self._run(), name=f"part-{self.name}")

    async def close(self) -> None:
        """Stop watching and close it."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._value is not None:
            await self._close(self._value)
        self.ready = False

    async def _run(self) -> None:
        attempt = 0
        while True:
            attempt += 1
            try:
                if self._value is None:
                    self._value = await self._open()
                await self._check(self._value)
            except (HighwaterError, OSError, TimeoutError) as error:
                self._lost(str(error) or type(error).__name__)
                if self._value is not None and self._is_lost(self._value):
                    self._value = None
                wait_ms = OPENING.wait_ms(attempt)
                await asyncio.sleep((wait_ms or OPENING.most_ms) / 1000)
                continue
            attempt = 0
            self._found()
            await asyncio.sleep(self._check_seconds)

    def _lost(self, reason: str) -> None:
        self.reason = reason
        if self.ready or not self._reported:
            _log.warning("a service is unavailable; it is tried again", part=self.name, reason=reason)
        self._reported = True
        self.ready = False

    def _found(self) -> None:
        if not self.ready:
            _log.info("part is ready", part=self.name)
        self._reported = True
        self.ready = True
        self.reason = ""
