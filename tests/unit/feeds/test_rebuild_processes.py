"""How many rebuilds a machine does at once."""

from __future__ import annotations

import os

import pytest

from highwater.connectors.children import count_cores
from highwater.connectors.run import resolve_names, with_rebuild_processes
from highwater.streams.settings import read_settings

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000\n", CORES), ("100000 100000\n", 1), ("50000 100000\n", 1), ("99900000 100000\n", CORES), ("", CORES)],
)
def test_a_container_has_the_cores_that_it_is_given(quota: str, cores: int):
    """Whole cores of the container's share, at least one, at most those of the machine; without a share the machine's."""
    assert count_cores(quota) == cores


def test_the_kernel_can_be_asked():
    """The number for this machine is one of its cores."""
    assert 1 <= count_cores() <= CORES


@pytest.mark.parametrize(
    ("names", "environment", "processes"),
    [
        (("rebuild",), {}, 16),
        (("workers",), {}, 1),
        (("rebuild", "fanout"), {}, 1),
        (("rebuild",), {"HIGHWATER_REBUILD_PROCESSES": "3"}, 3),
        (("workers",), {"HIGHWATER_REBUILD_PROCESSES": "3"}, 3),
    ],
)
def test_a_rebuild_host_uses_every_core(names: tuple[str, ...], environment: dict[str, str], processes: int):
    """Alone it has one process per core; beside other services one; a setting always counts."""
    settings = with_rebuild_processes(read_settings(environment), resolve_names(names), 16)
    assert settings.rebuild_processes == processes
