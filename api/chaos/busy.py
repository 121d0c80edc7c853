"""Processes that want every core: the load of a busy machine.

Invariant: they end with this process, however it ends (a pipe that only it holds open), and after a bounded time in any
case. They run at the usual priority, as the programs of a neighbour do.
"""

from __future__ import annotations

import os
import subprocess
import sys

# Beyond the planned time, for a run that is itself slowed down by them.
_MORE_SECONDS = 60.0
_END_SECONDS_MAX = 30.0
# Arguments: seconds. Standard input becomes readable when its other end is closed.
_PROGRAM = """
import select, sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end and not select.select([0], [], [], 0)[0]:
    for _ in range(100_000):
        pass
"""


class BusyMachine:
    """A number of processes that compute."""

    def __init__(self) -> None:
        self._pipe: int | None = None
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Return the numbers of the processes that run."""
        return tuple(one.pid for one in self._processes if one.poll() is None)

    def begin(self, processes: int, seconds: float) -> None:
        """Start them, for about this long."""
        reader, self._pipe = os.pipe()
        argv = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(seconds + _MORE_SECONDS)]
        try:
            for _ in range(processes):
                self._processes.append(subprocess.Popen(argv, stdin=reader))  # noqa: S603 - our own argument list
        finally:
            os.close(reader)

    def end(self) -> None:
        """End them, and return when all have ended."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        for process in self._processes:
            try:
                process.wait(_END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
