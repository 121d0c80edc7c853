"""A part of a verification ends: by itself, or with what it waited for."""

from __future__ import annotations

import asyncio

import pytest

from highwater.connectors.verify.patience import TimeLimit
from highwater.schemas.errors import UnavailableError


async def hanging(patience: TimeLimit) -> None:
    """A part that waits for something that never answers."""
    async with patience.part("models"):
        patience.at("the sink users at t/0/7")
        await asyncio.Event().wait()


async def test_what_hangs_is_ended_with_what_it_waits_for():
    """Something that never answers does not hold the command for ever."""
    with pytest.raises(
        UnavailableError, match=r"models were not compared within 0\.01 s .* waiting for the sink users at t/0/7$"
    ):
        await hanging(TimeLimit(0.01))


async def reading(patience: TimeLimit, seen: list[str]) -> None:
    """A part that never awaits anything."""
    async with patience.part("tables"):
        for what in ("t/0", "t/1", "t/2"):
            patience.at(what)
            seen.append(what)


async def test_a_loop_that_never_gives_way_looks_at_the_time_itself():
    """What reads a log does not await anything; it names what it was at, not what comes next."""
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
    patience = TimeLimit(10, now=lambda: next(now))
    for part in ("tables", "models"):
        async with patience.part(part):
            patience.check()
        patience.at("nothing")
