"""Processes that we start for heavy work: at its start one binds itself to its parent and limits its memory and its
processor time; the parent awaits it while it makes progress.

Invariant: if such a process fails, it fails alone. The kernel keeps its limits, so they hold inside a single call of a
library that nothing interrupts.
"""

import asyncio
import ctypes
import errno
import math
import os
import resource
import signal
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.streams.clock import monotonic_seconds
from highwater.streams.progress import LOOK_SECONDS, Progress, WorkLimit, work_of

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
NO_ROOM = f"a file in {tempfile.gettempdir()} cannot be written"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Exit status of a process that could not write its output (sysexits.h).
EX_IOERR = 74
OUT_OF_TIME = (signal.SIGPROF, signal.SIGALRM)
# A library to which the kernel gives no more memory ends the process in one of these ways.
_OUT_OF_MEMORY = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
# The C library reserves 8 MiB for each thread, which count as memory although hardly any of it is used.
_STACK_BYTES = 1 << 20
_PTHREAD_ATTR_BYTES_MAX = 256

_CPU_QUOTA = Path(
    "/sys/fs/cgroup/cpu.max"
)  # of a container: microseconds per period, and the period; `max` means unlimited


class StalledError(HighwaterError):
    """A process made no progress. Give the machine more memory or processor time, and try again."""

    retriable = True
    retry_after_ms = 1_000


class ProcessorTimeError(HighwaterError):
    """A process used more processor time than its work may take. Give it less work."""


@contextmanager
def room_needed() -> Iterator[None]:
    """Write and close temporary files within the block.

    Raises:
        UnavailableError: there is no room for them.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise UnavailableError(f"{NO_ROOM}: {error.strerror}") from error


async def while_working(
    process_id: int, result: Coroutine[Any, Any, T], limit: WorkLimit, processor_seconds_max: float = math.inf
) -> T:
    """Await what a process is to deliver, for as long as it makes progress; the caller ends it.

    Raises:
        StalledError: it makes none.
        ProcessorTimeError: it has used too much processor time, which a busy machine does not stretch.
    """
    task = asyncio.ensure_future(result)
    measure = partial(work_of, process_id)
    progress, before = Progress(limit, monotonic_seconds()), measure().processor_seconds
    try:
        while not (await asyncio.wait({task}, timeout=LOOK_SECONDS))[0]:
            why = progress.why_over(measure, monotonic_seconds())
            if why is not None:
                raise StalledError(f"{why} and was ended")
            if progress.work.processor_seconds - before > processor_seconds_max:
                raise ProcessorTimeError(f"took over {processor_seconds_max:g} s of processor time and was ended")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def count_cores(quota: str | None = None) -> int:
    """Return how many cores this process may use: its CPU affinity, or the quota of its container; at least 1.

    Args:
        quota: the container's quota from the kernel; None = read it.
    """
    cores = len(os.sched_getaffinity(0))
    if quota is None:
        quota = _CPU_QUOTA.read_text(encoding="ascii") if _CPU_QUOTA.exists() else "max"
    given, _, period = quota.partition(" ")
    if not given.isdecimal() or not period.strip().isdecimal():
        return cores
    return max(1, min(cores, int(given) // int(period)))


def die_with_parent(parent_id: int) -> None:
    """Let the kernel kill this process when its parent ends, however that ends.

    Raises:
        SystemExit: it has ended already.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent_id:  # it died before the call above
        raise SystemExit("the parent process has ended")


def limit_child(memory_bytes_max: int, processor_seconds_max: float, seconds_max: float = math.inf) -> None:
    """Bind this process to its parent, and limit it, also by the clock; call it once all that it needs is loaded."""
    die_with_parent(os.getppid())  # if the parent has ended already, so has the input
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold the data of users
    _limit_stacks()
    limit_memory(memory_bytes_max)
    limit_processor_time(processor_seconds_max)
    if seconds_max < math.inf:
        signal.setitimer(signal.ITIMER_REAL, seconds_max)  # its signal ends the process, too


def limit_processor_time(seconds_max: float) -> None:
    """Let the kernel end this process once it has used this much processor time from now on.

    RLIMIT_CPU would count by another clock than `getrusage`, so it cannot be set again for each piece of work: after ten
    seconds of short pieces the two differ by a tenth.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds_max)  # without a handler its signal ends the process


def limit_passed(status: int) -> str | None:
    """Return which limit ended a process, by its exit status; None: another cause."""
    if -status in OUT_OF_TIME:
        return "took more time than it may have"
    if -status in _OUT_OF_MEMORY:
        return f"needed more memory than it may have, or failed ({signal.Signals(-status).name})"
    return None


def _limit_stacks() -> None:
    """Reserve less for each thread that is started from now on; other C libraries than glibc reserve little."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "pthread_setattr_default_np"):
        attributes = ctypes.create_string_buffer(_PTHREAD_ATTR_BYTES_MAX)
        libc.pthread_attr_init(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_STACK_BYTES))
        libc.pthread_setattr_default_np(attributes)


def limit_memory(memory_bytes_max: int) -> None:
    """Bound the resident size by bounding what can grow it.

    RLIMIT_DATA counts private writable memory: the heap, anonymous maps, stacks. The libraries' file pages are not
    counted but are resident by now, so the limit is reduced by them. RLIMIT_AS would count reserved address space,
    which is far more than is used; Linux does not enforce RLIMIT_RSS.
    """
    with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 a kernel file, not one of our paths
        file_bytes = int(statm.read().split()[2]) * resource.getpagesize()
    limit = max(memory_bytes_max - file_bytes, 0)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
