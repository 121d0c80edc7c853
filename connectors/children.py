"""What a process that we start for heavy work does at its start: it ends with its parent, and limits its memory.

Invariant: if such a process fails, it fails alone.
"""

import ctypes
import os
import resource
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1


_CPU_QUOTA = Path(
    "/sys/fs/cgroup/cpu.max"
)  # of a container: microseconds per period, and the period; `max` means unlimited


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
