"""The common parts of a replay's processes: how they are started and ended, and what they report at their end.

Invariant: a process whose parent has ended, however that ended, ends too.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, BinaryIO, cast

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

# The product has priority: on a busy machine a task for the API uses what is left.
NICENESS = 10
# A piece of a file is larger than a pipe's 64 KiB; a process that waits for its parent reads nothing.
_PIPE_BYTES = 1 << 20


def command(program: str, *arguments: str) -> list[str]:
    """Return the command line that runs a line of Python with this interpreter; that of `run_task` has one argument, the
    file descriptor of its result.
    """
    return [sys.executable, "-P", "-c", program, *arguments]


def environment() -> dict[str, str]:
    """Return the environment of a process; it finds the same modules as this one."""
    return {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@contextmanager
def started(program: str, *arguments: str, pass_fds: tuple[int, ...] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that ends with the block.

    It is in its own process group, so that Ctrl-C reaches only the parent, which ends it. Its standard input stays open
    as long as the parent lives.
    """
    process = subprocess.Popen(  # noqa: S603 - this program
        command(program, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        pipesize=_PIPE_BYTES,
        pass_fds=pass_fds,
        process_group=0,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                cast("IO[bytes]", pipe).close()


def hand_over(task: object, process: subprocess.Popen[bytes]) -> None:
    """Send a process its task."""
    with suppress(BrokenPipeError):  # it has ended already; its closed output will show this
        pickle.dump(task, cast("IO[bytes]", process.stdin))
        cast("IO[bytes]", process.stdin).flush()


@contextmanager
def result_pipe() -> Iterator[tuple[int, int]]:
    """Yield the ends of a pipe for the result of a process; the first is closed with the block, the second by the caller
    once the process is started.
    """
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)


def result_in(pipe: int) -> Any:
    """Return the result of an ended process, or the error that ended it; None if it left neither."""
    with open(pipe, "rb", closefd=False) as file:
        content = file.read()
    return pickle.loads(content) if content else None  # noqa: S301 - from our own process


def run_task(work: Callable[[Any, BinaryIO], object]) -> None:
    """Run the task on standard input, writing to our own output, as long as the parent lives and needs it.

    Its result, or one of our errors that ended it, goes to a pipe of its own. After an error the exit status is 1.
    """
    pipe = own_output()
    with suppress(BrokenPipeError, EOFError):  # the parent has ended, or wants no more
        task = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the parent
        threading.Thread(target=end_with_parent, daemon=True).start()
        result: object
        try:
            with open(pipe, "wb") as output:  # noqa: PTH123 - a pipe has no path
                result = work(task, output)
        except HighwaterError as error:
            result = error
        if result is not None:
            with open(int(sys.argv[1]), "wb") as file:  # noqa: PTH123 - as above
                pickle.dump(result, file)
        if isinstance(result, HighwaterError):
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
