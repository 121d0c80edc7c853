"""A repeat of an insight with any different content is found; one with the same content is not a conflict."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.schemas.feeds import INSIGHT_INGESTED, InsightIngested
from highwater.schemas.positions import Position
from highwater.streams.feeds.repeats import Conflict, Stored, content_of, find_conflicts

INSIGHT: dict[str, Any] = {
    "insight_id": "i", "channel_id": "c", "ts": 5, "text": "a", "url": None, "embedding": None, "embedding_model": None,
}  # fmt: skip


def insight(**changes: Any) -> InsightIngested:
    """An insight that says something else."""
    return {**INSIGHT, **changes}  # type: ignore[return-value,typeddict-item]


def at(offset: int) -> Position:
    """A place in the log."""
    return Position(INSIGHT_INGESTED, 0, offset)


STORED = {"i": Stored(content_of(insight()), at(1))}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, None),
        ({"embedding": b"1234", "embedding_model": "mine"}, None),
        ({"text": "b"}, ("text",)),
        ({"text": None}, ("text",)),
        ({"text": ""}, ("text",)),
        ({"url": ""}, ("url",)),
        ({"ts": 6}, ("ts",)),
        ({"channel_id": "d", "ts": 6, "text": "b"}, ("channel_id", "ts", "text")),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], fields: tuple[str, ...] | None):
    """Channel, time, URL and text are compared; a vector is not."""
    expected = () if fields is None else (Conflict(0, at(1), fields),)
    assert find_conflicts([(insight(**changes), at(2))], STORED) == expected


def test_a_batch_holds_repeats_of_itself():
    """The first event of an id counts, with any later ones; an event that is stored already does not repeat itself."""
    batch = [(insight(text=text), at(offset)) for offset, text in ((4, "a"), (5, "b"), (6, "a"), (7, "c"))]
    assert find_conflicts(batch, {}) == (Conflict(1, at(4), ("text",)), Conflict(3, at(4), ("text",)))
    assert find_conflicts([(insight(), at(1))], STORED) == ()
