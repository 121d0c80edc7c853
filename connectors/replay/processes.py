"""The common parts of a replay's processes: their environment, and that they end with their parent.

Invariant: a process whose parent has ended, however that ended, ends too.
"""

from __future__ import annotations

import os
import sys

# Two threads allocate. With a malloc arena for each of librdkafka's other threads, and Arrow's own pool, which releases
# nothing, a process takes 50 MB more. Large blocks are returned to the system when they are freed, not when the C
# library decides to.
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 18),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 20),
}


def command(program: str) -> list[str]:
    """Return the command line that runs a line of Python with this interpreter."""
    return [sys.executable, "-P", "-c", program]


def environment() -> dict[str, str]:
    """Return the environment of a process; it finds the same modules as this one."""
    return {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


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
