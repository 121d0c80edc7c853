"""A table whose changelog gives an offset a second time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import faust
import pytest
from faust.types import TP

from highwater.streams.table_manager import Table

PLACE = TP("ticks-changelog", 0)


class Acknowledged(NamedTuple):
    """What the producer reports of a record, and the future that has it."""

    topic_partition: TP
    offset: int

    def result(self) -> Acknowledged:
        """Return itself."""
        return self


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """One with a real store, of an app that is not started."""
    app = faust.App("tails", Table=Table, datadir=tmp_path, store="rocksdb://", topic_partitions=1)
    made = app.Table("ticks", key_type=bytes, value_type=bytes, partitions=1)
    made.failures = []
    made.fail = made.failures.append
    return made


def test_rows_in_a_changelog_that_lost_its_tail_are_appended_at_the_next_start(table: Any) -> None:
    """The worker ends, and the offset of its store stays beyond any end, although further records are acknowledged."""
    for offset in (3, 4, -1, 5):  # -1: the broker has the record already, and does not say where
        table._on_changelog_sent(Acknowledged(PLACE, offset))
    assert (table.failures, table.data.persisted_offset(PLACE)) == ([], 5)
    for offset in (4, 5, 6):
        table._on_changelog_sent(Acknowledged(PLACE, offset))
    assert len(table.failures) == 1
    assert "lost the tail of ticks-changelog/0" in table.failures[0]
    assert table.data.persisted_offset(PLACE) > 2**60
