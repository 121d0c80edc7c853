"""A part of a verification ends: by itself, or with what it waited for."""

from __future__ import annotations

import asyncio

import pytest

from highwater.connectors.verify.time_limits import TimeLimit
from highwater.schemas.errors import UnavailableError


async def hanging(time_limit: TimeLimit) -> None:
    """A part that waits for something that never answers."""
    async with time_limit.part("models"):
        time_limit.at("the sink users at t/0/7")
        await asyncio.Event().wait()


async def test_what_hangs_is_ended_with_what_it_waits_for():
    """Something that never answers does not hold the command forever."""
    with pytest.raises(
        UnavailableError, match=r"models were not compared within 0\.01 s .* waiting for the sink users at t/0/7$"
    ):
        await hanging(TimeLimit(0.01))


async def reading(time_limit: TimeLimit, seen: list[str]) -> None:
    """A part that never awaits anything."""
    async with time_limit.part("tables"):
        for what in ("t/0", "t/1", "t/2"):
            time_limit.at(what)
            seen.append(what)


async def test_a_loop_that_never_gives_way_looks_at_the_time_itself():
    """Reading a log awaits nothing; the error names the current step, not the next one."""
    now = iter([0.0, 1.0, 9.0, 11.0])
    seen: list[str] = []
    with pytest.raises(UnavailableError, match=r"waiting for t/1$"):
        await reading(TimeLimit(10, now=lambda: next(now)), seen)
    assert seen == ["t/0", "t/1"]


async def test_a_time_that_ran_out_inside_is_not_its_own():
    """A statement that was too slow says so itself."""
    with pytest.raises(TimeoutError, match="a statement"):
        async with TimeLimit(60).part("models"):
            raise TimeoutError("a statement")


async def test_each_part_has_its_own_time():
    """And between parts none runs."""
    now = iter([0.0, 8.0, 20.0, 28.0])
    time_limit = TimeLimit(10, now=lambda: next(now))
    for part in ("tables", "models"):
        async with time_limit.part(part):
            time_limit.check()
        time_limit.at("nothing")
