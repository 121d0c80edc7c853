"""Sizes of partitions, as brokers answer them."""

from __future__ import annotations

from types import SimpleNamespace

from highwater.connectors.kafka.log_dirs import Replica, sizes_of


def test_a_copy_that_moves_to_another_disk_counts_once() -> None:
    """All disks of a broker are summed; a copy that is still being moved is left out."""
    disks = [
        (0, "/one", [("orders", [(0, 100, 0, False), (1, 7, 0, False)])]),
        (0, "/two", [("orders", [(0, 60, 5, True)])]),
    ]
    found = sizes_of(3, SimpleNamespace(results=disks))
    assert found == {Replica("orders", 0, 3): 100, Replica("orders", 1, 3): 7}
