"""A pause of the supervisor that ends as soon as one of its processes does, or as it is asked to stop.

Invariant: nothing is lost by pausing: what ended or was asked before the pause ends it at once. The kernel tells of an end by a
descriptor of the process (pidfd); where it has none, the pause is short.
"""

from __future__ import annotations

import contextlib
import os
import select
import weakref
from collections.abc import Iterable

# Without descriptors of processes: how soon an end is seen.
_BLIND_SECONDS_MAX = 0.2


class Attention:
    """The pauses of one thread; `wake` is called by any, a signal handler's too."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # With this object, not earlier: a request to stop may come when the pauses are over.
        weakref.finalize(self, _close, self._reader, self._writer)

    def wake(self) -> None:
        """End the pause, and every later one."""
        with contextlib.suppress(BlockingIOError):  # it is full: it wakes already
            os.write(self._writer, b"\0")

    def pause(self, pids: Iterable[int], seconds: float) -> None:
        """Wait so long, or until one of our processes that were alive a moment ago has ended."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        descriptors: list[int] = []
        try:
            for pid in pids:
                try:
                    descriptors.append(os.pidfd_open(pid))
                except ProcessLookupError:
                    return  # it has ended, and somebody has seen that
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
