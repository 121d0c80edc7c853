"""The common parts of a replay's processes: their environment, and that they end with their parent.

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

# Two threads allocate. With a malloc arena for each of librdkafka's other threads, and Arrow's own pool, which releases
# nothing, a process takes 50 MB more. Large blocks are returned to the system when they are freed, not when the C
# library decides to.
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 18),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 20),
}

_NICE = 10


def command(program: str) -> list[str]:
    """Return the command line that runs a line of Python with this interpreter."""
    return [sys.executable, "-P", "-c", program]


def environment() -> dict[str, str]:
    """Return the environment of a process; it finds the same modules as this one."""
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
    """Wait until standard input ends, which it does when the parent ends, then end this process; run it in a thread of
    its own.
    """
    # Not through `sys.stdin`, whose lock would be held when Python exits.
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)


def own_output() -> int:
    """Return standard output as a file descriptor of the caller's own; accidental prints go to standard error."""
    pipe = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return pipe
