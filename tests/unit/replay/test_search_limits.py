"""A search ends within its time and its memory, also with a slow condition or a large record."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from highwater.connectors.replay import searching
from highwater.connectors.replay.counts import Counts
from highwater.connectors.replay.cursors import Cursor, Search, parse_cursor
from highwater.connectors.replay.running import Chooser
from highwater.connectors.replay.searches import Searches, SearchRefusedError
from highwater.connectors.replay.searching import Limits, Searching
from highwater.connectors.replay.shares import Share
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import monotonic_seconds
from tests.unit.replay.making import TOPIC, batch, decoder_of, encoded, insight, own_text

BATCHES_MAX = 20_000


def test_a_segment_that_takes_too_long_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page ends, and its cursor begins with the segment: nothing that was not judged counts as read."""
    records = batch([encoded(insight(), own_text())])

    def endless(*_: Any) -> Iterator[Any]:
        for _ in range(BATCHES_MAX):
            yield records
        raise AssertionError("the segment was read to its end")

    monkeypatch.setattr(searching, "SEGMENT_SECONDS_MORE", 0.0)
    monkeypatch.setattr(searching, "open_reader", lambda _: io.BytesIO())
    monkeypatch.setattr(searching, "read_batches", endless)
    search, counts = Search(TOPICS[TOPIC]), Counts()
    chooser = Chooser(TOPIC, decoder_of(), counts)
    cursor = Cursor({3: Share(0, BATCHES_MAX)}, BATCHES_MAX)
    limits = Limits(10, monotonic_seconds() + 0.05)
    *_, end = map(orjson.loads, Searching({}, search, chooser, counts, cursor, limits).events())
    assert (end["event"], end["reason"], end["scanned"], end["found"]) == ("end", "time", 0, 0)
    assert parse_cursor(end["cursor"], search).spans == cursor.spans


async def test_a_search_ends_at_the_limit_of_memory() -> None:
    """Its process has one, since records of others may decode to any size; the answer says what to do."""
    program = (
        "from highwater.connectors.replay import search_process as module; "
        "module._search = lambda *_: bytearray(2 << 30); module.main()"
    )
    with pytest.raises(SearchRefusedError, match="needed more memory than it may have"):
        async with asyncio.timeout(60), Searches(program).open(None, "caller"):
            pass
