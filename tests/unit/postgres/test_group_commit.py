"""Group commit: each caller gets its own outcome, one transaction runs at a time, and an invalid item does not affect others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from highwater.connectors.postgres.group_commit import ITEMS_MAX, GroupCommit
from highwater.schemas.errors import UnavailableError


class Store:
    """Doubles numbers; refuses negative ones; is unavailable for a given number of calls."""

    def __init__(self, away: int = 0) -> None:
        self.batches: list[list[int]] = []
        self.away = away
        self.at_once = 0
        self.most_at_once = 0

    def stored(self) -> list[int]:
        """Everything that was stored."""
        return [item for batch in self.batches for item in batch]

    async def __call__(self, items: Sequence[int]) -> list[int]:
        """Store a batch."""
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            if self.away:
                self.away -= 1
                raise UnavailableError
            if any(item < 0 for item in items):
                raise ValueError(f"{min(items)} is negative")
            self.batches.append(list(items))
            return [2 * item for item in items]
        finally:
            self.at_once -= 1


async def test_what_comes_together_is_stored_together():
    """One batch, each with its own result, never two at once."""
    store = Store()
    group: GroupCommit[int, int] = GroupCommit(store)
    assert await asyncio.gather(*map(group, range(100))) == [2 * number for number in range(100)]
    assert store.batches == [list(range(100))]
    assert await asyncio.gather(*map(group, range(3 * ITEMS_MAX))) == [2 * n for n in range(3 * ITEMS_MAX)]
    assert (store.most_at_once, max(map(len, store.batches))) == (1, ITEMS_MAX)


async def test_a_bad_item_fails_alone():
    """The others of its batch are stored."""
    store = Store()
    group: GroupCommit[int, int] = GroupCommit(store)
    results = await asyncio.gather(*map(group, [1, -5, 2]), return_exceptions=True)
    assert (results[0], results[2]) == (2, 4)
    assert isinstance(results[1], ValueError)
    assert sorted(store.stored()) == [1, 2]


@pytest.mark.requirement("R1.31")
async def test_a_store_that_is_away_is_waited_for():
    """Nothing fails and nothing is stored twice (R1.31)."""
    store = Store(away=2)
    group: GroupCommit[int, int] = GroupCommit(store)
    assert await asyncio.gather(group(1), group(2)) == [2, 4]
    assert store.batches == [[1, 2]]


async def test_who_was_cancelled_before_is_not_stored():
    """An item that was not begun is dropped; the others are stored."""
    store = Store()
    group: GroupCommit[int, int] = GroupCommit(store)
    first = asyncio.create_task(group(1))
    await asyncio.sleep(0)
    second, third = asyncio.create_task(group(2)), asyncio.create_task(group(3))
    await asyncio.sleep(0)
    second.cancel()
    assert await asyncio.gather(first, third) == [2, 6]
    with pytest.raises(asyncio.CancelledError):
        await second
    assert 2 not in store.stored()
