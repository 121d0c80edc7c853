"""Owns what the processes of a replay have in common: their environment, and that they end with their parent.

Invariant: a process whose parent has ended, however that ended, ends too.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

# Two threads allocate; with an arena for each of all the others that librdkafka has, and Arrow's own pool, which gives
# nothing back, a process takes 50 MB more.
# What is large goes back to the system when it is let go, not when the C library thinks that it may.
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 18),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 20),
}

_NICE = 10


def command(program: str) -> list[str]:
    """The command line that runs a line of Python with this interpreter."""
    return [sys.executable, "-P", "-c", program]


def environment() -> dict[str, str]:
    """What a process is started with; it finds the modules that this one finds."""
    return {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def run_task(work: Callable[[Any, BinaryIO], None]) -> None:
    """Do the task that stands on standard input, with our own output, as long as the parent lives and wants it.

    What the product does goes first: on a busy machine a task takes what is left.
    """
    os.nice(_NICE)
    pipe = own_output()
    with suppress(BrokenPipeError, EOFError):  # the parent has ended, or wants no more
        task = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the parent
        threading.Thread(target=end_with_parent, daemon=True).start()
        with open(pipe, "wb") as output:  # noqa: PTH123 - a pipe has no path
            work(task, output)


def end_with_parent() -> None:
    """Wait until standard input ends, which it does when the parent ends, and end this process; for a thread of its own."""
    # Not through `sys.stdin`, whose lock would be held when Python itself ends.
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)


def own_output() -> int:
    """Standard output as a file descriptor of the caller's own; what is printed by mistake goes to standard error."""
    pipe = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return pipe
