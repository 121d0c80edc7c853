"""Keeps signals away from librdkafka's binding while it creates a client.

The binding reads each setting through Python calls. A signal handler that raises in one of them, as Ctrl-C does, is
reported as `TypeError: expected configuration property name as type unicode string`, and the interrupt is lost.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Delay signals to this thread until the block has ended; creating a client takes well under a millisecond."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
