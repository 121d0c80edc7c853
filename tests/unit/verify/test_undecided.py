"""The fields of a recovered row that follow from decisions in the log; where the log is open, the decision is repeated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from highwater.connectors.recovery.undecided import settled
from highwater.streams.feeds.dirty import Channel, decode_channel, encode_channel
from highwater.streams.feeds.state import User, decode_user, encode_user
from highwater.streams.jobs import usage
from highwater.streams.jobs.usage import Totals

REQUESTED: dict[Any, Any] = {
    ("requested", "u1"): "feeds.rebuild-requested/3/7",
    ("request", "u1", 7): (5_000, "feeds.rebuild-requested/3/7"),
}


@pytest.mark.parametrize(
    ("told", "channel", "expected"),
    [
        (9, Channel(9, 100), None),  # published: clean, with anything that the agent found
        (8, Channel(9, None), 200),  # not published: dirty, with anything that the agent found
        (8, Channel(9, 100), 100),
        (9, Channel(9, None, 1), 200),  # which retractions were published is in no event
    ],
)
def test_a_channel_is_clean_if_its_head_was_told(told: int, channel: Channel, expected: int | None) -> None:
    """Otherwise the next tick publishes it, perhaps once more, as dirty since its last advance."""
    notes: dict[Any, Any] = {("dirty", "c1"): (told, "feeds.channel-dirty/0/1"), ("advanced", "c1"): 200}
    assert decode_channel(settled(notes, "channel_heads", b"c1", encode_channel(channel))).dirty_since == expected


def test_the_last_request_of_a_user_is_that_of_the_log() -> None:
    """By offset and time; the deadline moves with it, and a demand that it served stays served."""
    user = User(requested_offset=2, last_enqueued_at=4_000, requested_until=4_400, served_revision=3)
    found = decode_user(settled(REQUESTED, "users", b"u1", encode_user(user)))
    assert (found.requested_offset, found.last_enqueued_at, found.requested_until) == (7, 5_000, 5_400)
    assert found.served_revision == 3


def test_a_request_that_the_machine_failed_does_not_count() -> None:
    """The time is that of the request before it, as its answer reports, and demands wait again."""
    notes = {**REQUESTED, ("delayed", "u1", 7): (3_000, "feeds.rebuild-finished/3/9")}
    user = User(
        requested_offset=2, last_enqueued_at=4_000, requested_until=4_400, demanded_revision=3, served_revision=3
    )
    found = decode_user(settled(notes, "users", b"u1", encode_user(user)))
    assert (found.requested_offset, found.last_enqueued_at, found.requested_until) == (7, 3_000, 5_400)
    assert found.is_demanded


def test_a_request_that_the_log_does_not_have_was_not_made() -> None:
    """Nothing is in flight, and a demand waits again."""
    user = User(
        requested_offset=2, last_enqueued_at=6_000, requested_until=6_400, demanded_revision=3, served_revision=3
    )
    assert decode_user(settled(REQUESTED, "users", b"u1", encode_user(user))).is_demanded
    found = decode_user(settled({}, "users", b"u1", encode_user(user)))
    assert (found.requested_offset, found.last_enqueued_at, found.in_flight_until) == (-1, None, None)
    assert found.is_demanded


@pytest.mark.parametrize(("upto", "since", "expected"), [(5, 77, None), (4, None, 0), (4, 77, 77)])
def test_usage_waits_until_its_total_was_told(upto: int, since: int | None, expected: int | None) -> None:
    """Totals are absolute, so telling them twice changes nothing."""
    totals = replace(Totals("o1", "2026-11"), upto_seq=5, since_ms=since)
    notes = {("flushed", "o1", "2026-11"): (upto, "jobs.usage-flushed/0/1")}
    found = usage.decode_row(settled(notes, "usage", b"o1", usage.encode_row(totals)))
    assert found is not None
    assert found.since_ms == expected


def test_a_row_without_decisions_is_as_the_agents_found_it() -> None:
    """Bytes for bytes."""
    assert settled({}, "namespaces", b"notes", b"[1]") == b"[1]"
