"""The broker's answers about topics: which are cached, and which are read again."""

from __future__ import annotations

import pytest

from highwater.streams.preflight import is_settled

NONE, UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, NOT_LEADER, INVALID_TOPIC = 0, 3, 5, 6, 17


@pytest.mark.parametrize(
    ("error_code", "settled"),
    [(NONE, True), (UNKNOWN_TOPIC, True), (INVALID_TOPIC, True), (LEADER_NOT_AVAILABLE, False), (NOT_LEADER, False)],
)
def test_a_topic_without_a_leader_is_not_a_topic_that_is_missing(error_code: int, settled: bool) -> None:
    """Just after it was silent a broker has no leader for any topic, which ended a worker as a catalogue that differs."""
    assert is_settled(error_code) is settled
