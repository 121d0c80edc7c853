"""Whether a table is whole: its changelog has its beginning, or a mark says that it was completed after that was deleted.

The invariant: nothing is decided on rows that are restored from a part of a changelog. Compaction never moves the beginning of
a log; only deletion does (a retention set on a changelog, segments removed by hand), and rows that nobody has changed since are
gone with it, silently. So a changelog that begins above 0 is refused, unless it holds a row of its own that says up to which
beginning the rest is complete. `highwater recover-tables` makes the missing rows again from the events and writes that mark
last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from highwater.schemas.errors import RowsLostError

# The row that holds the mark, beside a table's rows: the beginning of the log, in decimal, that it was completed for. No key
# of an event begins so.
MARK_KEY = b"\0whole"


def mark_of(log_start: int) -> bytes:
    """The mark of a changelog that was completed when it began there."""
    return b"%d" % log_start


def is_whole(log_start: int, mark: bytes | None) -> bool:
    """Whether a changelog that begins at an offset, with this mark, holds every row."""
    return log_start == 0 or (mark is not None and mark.isdigit() and int(mark) >= log_start)


def require_whole(table: Any, partition: int, log_starts: Mapping[tuple[str, int], int]) -> None:
    """Look for the mark where one is needed; the event at hand is of this partition.

    Args:
        table: one of the stream library.
        partition: of the event at hand.
        log_starts: where changelogs that do not begin at 0 begin, by table and partition, as of the last recovery.

    Raises:
        RowsLostError: the table is not whole.
    """
    if not log_starts:
        return
    start = log_starts.get((table.name, partition), 0)
    if not is_whole(start, table.get(MARK_KEY)):
        raise RowsLostError(table.name, partition, start)
