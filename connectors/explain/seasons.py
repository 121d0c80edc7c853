"""Reads every change of a season's matches from the log, in order.

Invariant: a log that does not go back to its first record is reported as incomplete.
"""

from __future__ import annotations

from typing import NamedTuple

from highwater.connectors.kafka.finding import RECORDS_MAX, Finder
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.schemas.league import MATCH_CHANGED
from highwater.schemas.positions import Cause
from highwater.schemas.topics import TOPICS
from highwater.streams.league.past import Change

# A season of 380 matches has some 2,000 changes; a page holds this many in memory while it is open, and drops the
# oldest.
CHANGES_MAX = 10_000


class SeasonLog(NamedTuple):
    """The changes that were read; `is_complete`: from the very first one to the last."""

    changes: tuple[Change, ...]
    is_complete: bool


def season_log(finder: Finder, season: str) -> SeasonLog:
    """Read the changes of a season's matches."""
    key = season.encode()
    place = (MATCH_CHANGED, murmur2_partition(key, TOPICS[MATCH_CHANGED].partitions))
    low, high = finder.ends(place)
    found = [
        Change(event.value, Cause(event.record.arrived_ms, str(event.record.position)))
        for event in finder.events(place, 0, lambda record: record.key == key)
    ]
    is_whole = low == 0 and high - low <= RECORDS_MAX and len(found) <= CHANGES_MAX
    return SeasonLog(tuple(found[-CHANGES_MAX:]), is_whole)
