"""A table whose changelog lost its beginning is refused, unless its mark says that it was completed since."""

from __future__ import annotations

import pytest

from highwater.schemas.errors import RowsLostError
from highwater.streams.agents import items_of
from highwater.streams.driver import Table
from highwater.streams.whole_tables import MARK_KEY, is_whole, mark_of, require_whole


class Named(Table):
    """A table that knows its name, as those of the stream library do."""

    name = "users"


@pytest.mark.parametrize(
    ("log_start", "mark", "expected"),
    [(0, None, True), (1, None, False), (5, mark_of(5), True), (5, mark_of(9), True), (6, mark_of(5), False), (5, b"?", False)],
)  # fmt: skip
def test_a_changelog_is_whole_up_to_its_mark(log_start: int, mark: bytes | None, expected: bool) -> None:
    """One that begins at 0 needs none; rows that were deleted after its completion are missing again."""
    assert is_whole(log_start, mark) is expected


def test_each_partition_has_a_mark_of_its_own() -> None:
    """A table that is whole in one partition is refused in another, by name and number."""
    table = Named()
    table.partition = 1
    table[MARK_KEY] = mark_of(7)
    log_starts = {("users", 1): 7, ("users", 2): 1_234, ("usage", 1): 9}
    require_whole(table, 1, log_starts)
    table.partition = 2
    with pytest.raises(RowsLostError, match=r"of the table users lost the first 1,234 records of partition 2"):
        require_whole(table, 2, log_starts)


def test_a_mark_is_no_row() -> None:
    """A listing of a table's rows does not contain it."""
    table = Named()
    table[MARK_KEY] = mark_of(7)
    table[b"u1"] = b"row"
    assert list(items_of(table, 0)) == [(b"u1", b"row")]
