"""The order of a search over several partitions, and its pages: nothing twice and nothing left out, however it is read."""

from __future__ import annotations

import random  # noqa: TID251 - seeded
from collections.abc import Mapping

import pytest

from highwater.connectors.replay.cursors import Cursor, InvalidCursorError, Search, parse_cursor
from highwater.connectors.replay.lanes import FoundRecord, Lanes
from highwater.connectors.replay.shares import Share
from highwater.schemas.topics import TOPICS

SEARCH = Search(TOPICS["feeds.insight-ingested"])
Log = Mapping[int, list[FoundRecord]]


def log_of(dice: random.Random) -> Log:
    """Four partitions of up to sixty records, with gaps between offsets as compaction leaves them, and times that repeat."""
    log = {}
    for partition in range(4):
        offset = ms = 0
        log[partition] = []
        for _ in range(dice.randrange(60)):
            offset, ms = offset + dice.choice((1, 1, 1, 7)), ms + dice.choice((0, 0, 1, 50))
            log[partition].append(FoundRecord(partition, offset, ms, b"x"))
    return log


def page(
    log: Log, spans: Mapping[int, Share], size: int, segment: int, *, is_newest_first: bool
) -> tuple[list[FoundRecord], dict[int, Share]]:
    """One page as `searching.py` makes it, over a log in memory of which every third record matches; and the rest."""
    lanes, given = Lanes(spans, is_newest_first=is_newest_first), []
    while len(given) < size:
        found = lanes.next()
        if found is not None:
            given.append(found)
            continue
        wanted = lanes.to_read()
        if not wanted:
            break
        for lane in wanted:
            part = lane.segment(segment)
            records = [one for one in log[lane.partition] if part.low <= one.offset < part.high]
            kept = [one for one in records if one.offset % 3 == 0]
            chosen = kept[-size:] if is_newest_first else kept[:size]
            edge = None if not records else records[0 if is_newest_first else -1].arrived_ms
            lane.take(part, chosen, edge, is_whole=len(chosen) == len(kept))
    return given, lanes.rests()


@pytest.mark.parametrize("is_newest_first", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_pages_give_every_record_once_in_order(seed: int, is_newest_first: bool):
    """For any sizes of page and segment, the pages together are the requested records, by time and partition."""
    dice = random.Random(seed)
    log = log_of(dice)
    spans = {partition: Share(0, records[-1].offset + 1) for partition, records in log.items() if records}
    expected = sorted(
        (one for records in log.values() for one in records if one.offset % 3 == 0),
        key=lambda one: (one.arrived_ms, one.partition, one.offset),
        reverse=is_newest_first,
    )
    total = sum(span.high for span in spans.values())
    given: list[FoundRecord] = []
    cursor = Cursor(spans, total)
    while cursor.spans:
        size, segment = dice.randrange(1, 9), dice.randrange(1, 30)
        more, rests = page(log, cursor.spans, size, segment, is_newest_first=is_newest_first)
        given += more
        assert len(more) == size or not rests, "a page that is not full ends the search"
        cursor = parse_cursor(Cursor(rests, total, len(given)).text(SEARCH), SEARCH)
    assert given == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "!",
        "e30",
        "W10",
        Cursor({0: Share(0, 9)}, 9).text(Search(SEARCH.topic, key="k")),
        Cursor({0: Share(0, 9)}, 8).text(SEARCH),
    ],
)
def test_a_cursor_of_something_else_is_refused(text: str):
    """One that cannot be read, of another search, or with more left than there was."""
    with pytest.raises(InvalidCursorError):
        parse_cursor(text, SEARCH)
