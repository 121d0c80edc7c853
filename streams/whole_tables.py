"""Whether a table is complete: its changelog has its beginning, or a mark says that it was completed after that was
deleted.

Invariant: nothing is decided on rows that are restored from part of a changelog. Compaction never moves the beginning
of a log; only deletion does (a retention set on a changelog, segments removed by hand), and unchanged rows disappear
with it silently. So a changelog that begins above 0 is refused, unless it contains a row that says for which beginning
the rest is complete. `highwater recover-tables` rebuilds the missing rows from the events and writes that mark last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from highwater.schemas.errors import RowsLostError

# The key of the mark, beside a table's rows: the beginning of the log, in decimal, for which it was completed. No key
# of an event begins like it.
MARK_KEY = b"\0whole"


def mark_of(log_start: int) -> bytes:
    """Return the mark of a changelog that was completed when it began there."""
    return b"%d" % log_start


def is_whole(log_start: int, mark: bytes | None) -> bool:
    """Return whether a changelog that begins at an offset, with this mark, contains every row."""
    return log_start == 0 or (mark is not None and mark.isdigit() and int(mark) >= log_start)


def require_whole(table: Any, partition: int, log_starts: Mapping[tuple[str, int], int]) -> None:
    """Check the mark where one is needed; the current event is of this partition.

    Args:
        table: one of the stream library.
        partition: of the current event.
        log_starts: the beginnings of changelogs that do not begin at 0, by table and partition, as of the last
            recovery.

    Raises:
        RowsLostError: the table is incomplete.
    """
    if not log_starts:
        return
    start = log_starts.get((table.name, partition), 0)
    if not is_whole(start, table.get(MARK_KEY)):
        raise RowsLostError(table.name, partition, start)
