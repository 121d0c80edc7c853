"""What a process that we start for heavy work does to itself: it ends with us, and takes no more memory than it was given.

Invariant: whatever such a process meets, it fails alone.
"""

import ctypes
import os
import resource
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1


_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds a period, and the period; `max` is no limit


def count_cores(quota: str | None = None) -> int:
    """How many cores this process may use at once: those it may run on, or those that its container is given; at least 1.

    Args:
        quota: what the kernel says of the container; None = read it.
    """
    cores = len(os.sched_getaffinity(0))
    if quota is None:
        quota = _CPU_QUOTA.read_text(encoding="ascii") if _CPU_QUOTA.exists() else "max"
    given, _, period = quota.partition(" ")
    if not given.isdecimal() or not period.strip().isdecimal():
        return cores
    return max(1, min(cores, int(given) // int(period)))


def die_with_parent(parent_id: int) -> None:
    """Have this process killed when the one that started it ends, however that ends.

    Raises:
        SystemExit: it has ended already.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent_id:  # it died before the call above
        raise SystemExit("the parent process has ended")


def limit_memory(memory_bytes_max: int) -> None:
    """Bound the resident size by bounding what can grow it.

    RLIMIT_DATA counts private writable memory: the heap, anonymous maps, stacks. What stays outside is the libraries'
    file pages, resident by now, so the limit is what they leave. RLIMIT_AS would count reserved address space, which
    is far above what is used; RLIMIT_RSS is not enforced by Linux.
    """
    with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 a kernel file, not a path of ours
        file_bytes = int(statm.read().split()[2]) * resource.getpagesize()
    limit = max(memory_bytes_max - file_bytes, 0)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
