"""A watch for which there is nothing to do: how often it asks, and how soon it works when there is something again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from highwater.api.simulate.engines import Works
from highwater.api.simulate.patches import Patches
from highwater.api.simulate.relays import in_virtual_time
from highwater.api.simulate.runs import RunScenario
from highwater.api.simulate.virtual import run_virtually
from highwater.connectors.engines import watch as watching
from highwater.connectors.queries import store as queries_store
from highwater.streams.queries.runs import Run
from highwater.streams.queries.states import Status

RESTED_SECONDS = 100


@pytest.fixture
def patch() -> Iterator[Patches]:
    """Virtual clocks."""
    with in_virtual_time() as made:
        yield made


def test_a_watch_at_rest_asks_once_a_second_and_takes_what_comes(patch: Patches):
    """One query a second instead of five checks and a search; a run without a notification is taken within two."""
    asked: Counter[str] = Counter()

    def counted(name: str) -> None:
        method = getattr(Works, name)

        async def ask(self: Works[Any, Any], *arguments: Any, **named: Any) -> Any:
            asked[name] += 1
            return await method(self, *arguments, **named)

        patch.setattr(Works, name, ask)

    for name in ("take_due", "give_back_lost", "take_forgotten", "has_unended"):
        counted(name)
    patch.setattr(queries_store, "run_of", lambda row: row["work"])
    made = Run("run-1", "user-1", 1, "What is new?", Status.NEW)

    async def main() -> None:
        scenario = RunScenario(1)
        patch.setattr(watching, "open_connection", scenario.store.connect)
        scenario.start_worker()
        await asyncio.sleep(RESTED_SECONDS)
        seen.update(asked)
        scenario.table.rows[made.id] = made
        await asyncio.sleep(2)
        taken.append(scenario.table.rows[made.id].worker is not None or scenario.table.rows[made.id] != made)

    seen: Counter[str] = Counter()
    taken: list[bool] = []
    with structlog.testing.capture_logs():
        run_virtually(main())
    assert 0.8 * RESTED_SECONDS < seen["has_unended"] < 1.2 * RESTED_SECONDS
    assert max(seen[name] for name in ("take_due", "give_back_lost", "take_forgotten")) <= 5
    assert taken == [True]
