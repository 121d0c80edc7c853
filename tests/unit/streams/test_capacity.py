"""The estimate of which part breaks first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from highwater.streams.capacity import FULL, MEASURED, Load, Part, parts, reach, steps

LOAD = Load(users=100_000, channels=1_000, insights_per_day=100_000)


def by_name(load: Load) -> dict[str, Part]:
    """The parts under a load."""
    return {part.name: part for part in parts(load)}


def test_every_power_of_ten_is_told_up_to_100_million():
    """The load itself first, then powers of ten above it, in proportion."""
    found = steps(replace(LOAD, users=50_000))
    assert [step.load.users for step in found] == [50_000, *(10**power for power in range(5, 9))]
    assert found[-1].load.insights_per_day == 100_000 * 2_000
    assert [step.load.users for step in steps(replace(LOAD, users=10**9))] == [10**9]


def test_ten_times_the_load_takes_ten_times_of_each_part():
    """Shares grow with the load, and the fullest component comes first."""
    one, ten = by_name(LOAD), by_name(LOAD.times(10))
    for name, part in one.items():
        assert ten[name].share == pytest.approx(10 * part.share)
    assert [part.share for part in parts(LOAD)] == sorted((part.share for part in parts(LOAD)), reverse=True)


def test_the_reach_is_where_the_fullest_part_is_full():
    """In the same proportions, a little beyond it something breaks."""
    users = reach(LOAD)
    assert parts(LOAD.times(users / LOAD.users))[0].share == pytest.approx(FULL, rel=0.01)
    step = steps(LOAD.times(1.01 * users / LOAD.users))[0]
    assert [part.name for part in step.breaks] == [parts(LOAD)[0].name]


def test_cheaper_insights_leave_room_in_their_sink_alone():
    """A cost moves the parts that pay it."""
    cheaper = {
        part.name: part for part in parts(LOAD, replace(MEASURED, sink_cpu_seconds=MEASURED.sink_cpu_seconds / 2))
    }
    changed = {name for name, part in by_name(LOAD).items() if cheaper[name].share != part.share}
    assert changed == {"insights sink"}


def test_what_breaks_by_100_million_users_has_a_successor():
    """Each such part says why its limit is one, and what replaces it."""
    last = steps(LOAD)[-1]
    assert last.breaks
    assert all(part.reason and part.following for part in last.breaks)
