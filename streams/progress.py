"""Whether work that takes long still makes progress: the only limit on work, for services that start and for processes.

Invariant: work that makes progress is ended by its last bound only, which is hours; a busy machine makes work slower, and
a fixed time would end all of it at once. Silence is what ends work early, and only silence that somebody watched: a
watcher that did not run itself has seen nothing. `now` is a monotonic time in seconds and an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# How often work is measured: a fraction of any limit, and a measurement of a tree of processes costs some milliseconds.
LOOK_SECONDS = 1.0
# At most this much silence counts between two measurements: a watcher that waited longer was itself without a core.
WATCHED_SECONDS_MAX = 5.0
HOUR_SECONDS = 3_600.0
_PROC = Path("/proc")
_TICKS_PER_SECOND = 100.0  # the kernel's unit in /proc (USER_HZ), the same on every architecture that we run on


@dataclass(frozen=True, slots=True)
class WorkLimit:
    """When work is given up: after `quiet_seconds_max` without progress, and after `total_seconds_max` in any case.

    `processor_seconds_min` is how much processor time counts as progress: an idle server uses a little for itself.
    """

    quiet_seconds_max: float
    total_seconds_max: float
    processor_seconds_min: float = 0.01


@dataclass(frozen=True, slots=True)
class Work:
    """What a process and its children have done so far; each number grows while they work."""

    processor_seconds: float = 0.0
    pages_read: int = 0  # from disk, because the process needed them
    log_bytes: int = 0


class Progress:
    """Watches one piece of work."""

    def __init__(self, limit: WorkLimit, now: float) -> None:
        self._limit = limit
        self._began = self._seen = now
        self._quiet_seconds = 0.0
        self._mark = Work()
        self.work = Work()  # as measured last

    def note(self, work: Work, now: float) -> None:
        """Note a measurement."""
        mark, self.work = self._mark, work
        # A number falls when a child has ended before it was counted, or a log was rotated: then it grows from there.
        processor_seconds = min(mark.processor_seconds, work.processor_seconds)
        has_moved = (
            work.processor_seconds - processor_seconds >= self._limit.processor_seconds_min
            or work.pages_read > mark.pages_read
            or work.log_bytes > mark.log_bytes
        )
        self._quiet_seconds += min(now - self._seen, WATCHED_SECONDS_MAX)
        self._seen = now
        if has_moved:
            self._quiet_seconds, self._mark = 0.0, work
        else:
            self._mark = Work(processor_seconds, work.pages_read, work.log_bytes)

    def why_over(self, measure: Callable[[], Work], now: float) -> str | None:
        """Return why the work is to be ended, None while it may continue; it is measured from time to time only."""
        limit = self._limit
        if now - self._seen >= LOOK_SECONDS:
            self.note(measure(), now)
        if self._quiet_seconds >= limit.quiet_seconds_max:
            return f"made no progress for {limit.quiet_seconds_max:g} s"
        if now - self._began >= limit.total_seconds_max:
            return f"was not done after {limit.total_seconds_max / 60:g} min"
        return None


def work_of(pid: int, *, with_children: bool = False, log: Path | None = None) -> Work:
    """Return what a process has done, with those of its children that have ended; nothing for one that is gone.

    Args:
        pid: the process.
        with_children: count its living children and theirs too, which reads the list of all processes.
        log: the file to which it writes.
    """
    rows = _tree(pid) if with_children else [row for row in (_stat(pid),) if row is not None]
    log_bytes = 0
    if log is not None:
        try:
            log_bytes = log.stat().st_size
        except FileNotFoundError:
            log_bytes = 0
    return Work(
        sum(row.processor_ticks for row in rows) / _TICKS_PER_SECOND, sum(row.pages_read for row in rows), log_bytes
    )


@dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    pages_read: int
    processor_ticks: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return None
    # After the name, which may contain anything: state, parent, ... (proc(5)).
    fields = text.rpartition(")")[2].split()
    return _Stat(int(fields[1]), int(fields[9]) + int(fields[10]), sum(map(int, fields[11:15])))


def _tree(pid: int) -> list[_Stat]:
    rows = {int(path.name): row for path in _PROC.iterdir() if path.name.isdecimal() and (row := _stat(int(path.name)))}
    children: dict[int, list[int]] = {}
    for one, row in rows.items():
        children.setdefault(row.parent, []).append(one)
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        if one in rows:
            found.append(rows[one])
            waiting += children.get(one, [])
    return found
