"""A pause of the supervisor that ends as soon as one of its processes does, or a stop is requested.

Invariant: pausing loses no event: an end or a request before the pause ends it at once. The kernel reports an end by a
descriptor of the process (pidfd); without those the pause is short.
"""

from __future__ import annotations

import contextlib
import os
import select
import weakref
from collections.abc import Iterable

# Without process descriptors: how soon an end is noticed.
_BLIND_SECONDS_MAX = 0.2


class Attention:
    """The pauses of one thread; any thread, and a signal handler, may call `wake`."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Created with this object, not earlier: a request to stop may come when the pauses are over.
        weakref.finalize(self, _close, self._reader, self._writer)

    def wake(self) -> None:
        """End the pause, and every later one."""
        with contextlib.suppress(BlockingIOError):  # it is full, so it wakes already
            os.write(self._writer, b"\0")

    def pause(self, pids: Iterable[int], seconds: float) -> None:
        """Wait this long, or until one of our processes that were alive before has ended."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        descriptors: list[int] = []
        try:
            for pid in pids:
                try:
                    descriptors.append(os.pidfd_open(pid))
                except ProcessLookupError:
                    return  # it has ended, and was reaped
                except OSError:
                    seconds = min(seconds, _BLIND_SECONDS_MAX)
                    continue
                poll.register(descriptors[-1], select.POLLIN)
            poll.poll(seconds * 1000)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
