"""Rows of tables: read by name and by position, with the version of their form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from highwater.streams import versioned_rows
from highwater.streams.chunks import completion, temperature
from highwater.streams.feeds.dirty import Channel, decode_channel, encode_channel
from highwater.streams.feeds.state import ChannelView, User, decode_user, encode_user
from highwater.streams.jobs import usage
from highwater.streams.league import state
from highwater.streams.league.matches import State, Status
from highwater.streams.queries.orders import Order, Waiting, decode_order, encode_order
from highwater.streams.queries.states import Status as RunStatus
from highwater.streams.versioned_rows import RowForm

FORM = RowForm(2, ("name", "count", "at"), facts_min=2)
VIEW = ChannelView(9, 7, 3, is_subscribed=True, retractions=2, retractions_hwm=1, shown_offset=5)
RUN = Waiting(4, "r4", RunStatus.COMPLETED, 2)
# Each kind of row: what writes it, what reads it, one of them, and names that the sources have.
KINDS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any], Any, tuple[str, ...]]] = {
    "channel": (encode_channel, decode_channel, Channel(7, 1_000, 1), ("current_seq",)),
    "user": (encode_user, decode_user, User({"a": VIEW}, revision=3, plan="pro", requested_offset=8), ("hwm", "plan")),
    "match": (
        state.encode_row, state.decode_row,
        state.Row("s", "m", 2, 1_000, Status.SCHEDULED, State.FINAL, "A", "B", 2_000), ("match_id", "status"),
    ),
    "season": (state.encode_season, state.decode_season, 1_000, ("prewarmed_ms",)),
    "order": (encode_order, decode_order, Order(2, RUN, (RUN._replace(ordinal=5),)), ("queue", "ordinal")),
    "order of nothing": (encode_order, decode_order, Order(2), ("released",)),
    "usage": (
        usage.encode_row, usage.decode_row, usage.Totals("acme", "2026-11", 3, (5, 7), 1, 15, 900, 29, 1_000),
        ("tokens", "cost_cents"),
    ),
    "ingest": (
        completion.encode_row, completion.decode_row,
        completion.Ingest("ns|s|a.md", "i1", 2, 4, 1, 2, 1, 0, None, True, False, False, False, 1_000), ("expected",),
    ),
    "namespace": (
        temperature.encode_row, temperature.decode_row,
        temperature.NamespaceSearches("ns", ((20_000, 5), (20_001, 6)), 3, 9, 1_000, True, 5.5, 2_000), ("is_hot", "days"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_read_in_both_forms(kind: str, monkeypatch: pytest.MonkeyPatch):
    """By position, which this release writes, and by the names of the sources, which the next one does."""
    encode, decode, row, names = KINDS[kind]
    by_position = encode(row)
    monkeypatch.setattr(versioned_rows, "WRITES_NAMES", True)
    by_name = encode(row)
    assert decode(by_position) == decode(by_name) == row
    assert by_position.startswith(b"[")
    assert all(b'"%s":' % name.encode() in by_name for name in names)


def test_the_version_comes_first_and_is_no_fact():
    """The last facts may be left out, where the form says so."""
    row = FORM.encode(["a", 1, None])
    assert row == b'[2,"a",1,null]'
    assert [list(FORM.decode(one)) for one in (row, FORM.encode(["a", 1]))] == [["a", 1, None], ["a", 1]]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([3, "a", 1], "a row of version 3, not 2: it was written by a newer release"),
        ({"version": 3, "name": "a", "count": 1}, "a row of version 3, not 2"),
        ({"name": "a", "count": 1}, "a row of version None, not 2"),
        ({"version": 2, "name": "a", "count": 1, "more": 1}, "a row with more: it was written by a newer release"),
        ([2, "a"], "a row of 1 facts, not 3: it is damaged"),
        ([2, "a", 1, 2, 3], "a row of 4 facts, not 3: it is damaged"),
        ({"version": 2, "count": 1, "at": 2}, "a row without name: it is damaged"),
    ],
)
def test_a_row_that_is_not_understood_is_refused(row: Any, reason: str):
    """An older program does not misread it."""
    with pytest.raises(ValueError, match=reason):
        FORM.decode(orjson.dumps(row))
