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

from highwater.schemas.errors import HighwaterError

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
# A pipe holds this much without a reader.
_REASON_BYTES_MAX = 4_096


def command(program: str, *arguments: str) -> list[str]:
    """Return the command line that runs a line of Python with this interpreter; that of `run_task` has one argument, the
    file descriptor to which it writes why it failed.
    """
    return [sys.executable, "-P", "-c", program, *arguments]


def environment() -> dict[str, str]:
    """Return the environment of a process; it finds the same modules as this one."""
    return {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def reason_in(pipe: int) -> str:
    """Return why an ended process failed; empty if it did not say."""
    return os.read(pipe, _REASON_BYTES_MAX).decode(errors="replace")


def run_task(work: Callable[[Any, BinaryIO], None]) -> None:
    """Run the task on standard input, writing to our own output, as long as the parent lives and needs it.

    If one of our errors ends it, the parent gets the reason, and the exit status is 1.

    The product has priority: on a busy machine a task uses what is left.
    """
    os.nice(_NICE)
    pipe = own_output()
    with suppress(BrokenPipeError, EOFError):  # the parent has ended, or wants no more
        task = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the parent
        threading.Thread(target=end_with_parent, daemon=True).start()
        try:
            with open(pipe, "wb") as output:  # noqa: PTH123 - a pipe has no path
                work(task, output)
        except HighwaterError as error:
            os.write(int(sys.argv[1]), str(error).encode()[:_REASON_BYTES_MAX])
            sys.exit(1)


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
