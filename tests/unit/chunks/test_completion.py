"""How ingests end: by their counts, in any order of arrival; only complete ingests mark orphans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.chunks import IngestProgressed
from highwater.streams.chunks.completion import (
    ABANDONED_MS,
    KEPT_MS,
    Counted,
    Ingest,
    decide,
    decided,
    decided_event,
    decode_row,
    encode_row,
    plan_tick,
    progressed,
    reason_of,
)
from highwater.streams.chunks.states import Outcome

NOON = 1_794_484_800_000  # 2026-11-12T12:00:00Z
MINUTE = 60_000


def progress(revision: int = 1, **more: Any) -> IngestProgressed:
    """A full ingest of ten chunks, all of them new, whose end was announced."""
    seen = more.get("seen", 10)
    return {
        "ingest_id": "i-1",
        "ns": "docs",
        "slot": "main",
        "source_id": "guide.md",
        "revision": revision,
        "seen": seen,
        "failed": 0,
        "inserted": seen,
        "updated": 0,
        "unchanged": 0,
        "expected": 10,
        "full": True,
        "force": False,
        "truncated": False,
        "is_superseded": False,
        "at": NOON,
        **more,
    }  # type: ignore[typeddict-item]


def outcome(*events: IngestProgressed, now_ms: int = NOON) -> Outcome | None:
    """How an ingest stands after events, its row written and read again between each two."""
    row = None
    for event in events:
        row = decode_row(encode_row(progressed(row, event)))
    assert row is not None
    decision = decide(row, now_ms)
    return None if decision is None else decision.outcome


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, Outcome.COMPLETE),
        ({"seen": 9}, None),
        ({"seen": 0}, None),
        ({"expected": None}, None),
        ({"expected": None, "seen": 10_000, "failed": 3}, None),
        ({"seen": 9, "failed": 1}, Outcome.FAILED),
        ({"seen": 10, "failed": 1}, Outcome.FAILED),
        ({"seen": 0, "failed": 10}, Outcome.FAILED),
        ({"seen": 11}, Outcome.FAILED),
        ({"truncated": True}, Outcome.TRUNCATED),
        ({"truncated": True, "full": False}, Outcome.TRUNCATED),
        ({"truncated": True, "seen": 9, "failed": 1}, Outcome.FAILED),
        ({"full": False}, Outcome.PARTIAL),
        ({"full": False, "force": True}, Outcome.PARTIAL),
        ({"expected": 0, "seen": 0}, Outcome.EMPTY),
        ({"expected": 0, "seen": 0, "force": True}, Outcome.COMPLETE),
        ({"expected": 0, "seen": 0, "force": True, "full": False}, Outcome.PARTIAL),
        ({"expected": 0, "seen": 0, "force": True, "truncated": True}, Outcome.TRUNCATED),
        ({"expected": 0, "seen": 1}, Outcome.FAILED),
        ({"is_superseded": True}, Outcome.SUPERSEDED),
        ({"is_superseded": True, "expected": None, "seen": 3}, Outcome.SUPERSEDED),
        ({"is_superseded": True, "failed": 1}, Outcome.SUPERSEDED),
    ],
)
def test_how_an_ingest_ends(more: dict[str, Any], expected: Outcome | None):
    """Of several reasons the most serious is reported; while chunks are missing there is no decision."""
    assert outcome(progress(**more)) is expected


@pytest.mark.requirement("R3.20")
@pytest.mark.parametrize("one", list(Outcome))
def test_only_a_complete_ingest_makes_orphans(one: Outcome):
    """R3.20: partial, paginated, failed or empty ones mark nothing, nor do those that another overtook or that went silent."""
    events = {
        Outcome.COMPLETE: progress(),
        Outcome.PARTIAL: progress(full=False),
        Outcome.TRUNCATED: progress(truncated=True),
        Outcome.FAILED: progress(seen=9, failed=1),
        Outcome.EMPTY: progress(seen=0, expected=0),
        Outcome.SUPERSEDED: progress(is_superseded=True),
        Outcome.ABANDONED: progress(seen=9),
    }
    row = progressed(None, events[one])
    decision = decide(row, NOON + ABANDONED_MS)
    assert decision is not None
    told = decided_event(row, decision, NOON)
    assert (told["outcome"], told["marks_orphans"]) == (one, one is Outcome.COMPLETE)


def test_a_decision_names_what_it_was_decided_by():
    """The consumer of a decision can check whether its basis still holds."""
    row = progressed(None, progress(7, unchanged=4, inserted=3, updated=3))
    decision = decide(row, NOON)
    assert decision is not None
    shared = {name: value for name, value in progress(7, unchanged=4, inserted=3, updated=3).items() if name != "at"}
    expected = {**shared, "outcome": "complete", "marks_orphans": True, "decided_at": NOON + 1}
    assert decided_event(row, decision, NOON + 1) == expected


def test_the_end_may_be_heard_before_the_data():
    """Then it is waited for the data; so the counts decide and not the order."""
    told_first = [progress(1, seen=0), progress(2, seen=6), progress(3, seen=10)]
    assert [outcome(*told_first[:count]) for count in (1, 2, 3)] == [None, None, Outcome.COMPLETE]


def test_silence_ends_an_ingest_after_six_hours():
    """It does not end a millisecond earlier; any progress restarts the six hours."""
    waiting = progress(1, seen=3, expected=None)
    assert outcome(waiting, now_ms=NOON + ABANDONED_MS - 1) is None
    assert outcome(waiting, now_ms=NOON + ABANDONED_MS) is Outcome.ABANDONED
    later = progress(2, seen=4, expected=None, at=NOON + MINUTE)
    assert outcome(waiting, later, now_ms=NOON + ABANDONED_MS) is None
    assert outcome(waiting, later, now_ms=NOON + ABANDONED_MS + MINUTE) is Outcome.ABANDONED


def test_progress_is_decided_on_once():
    """Not again when it comes again, nor when an earlier one does; a later one is."""
    row = progressed(None, progress(3))
    assert decide(row, NOON) is not None
    row = decided(row, NOON)
    for event in (progress(3), progress(2, seen=9), progress(1, expected=None)):
        assert progressed(row, event) == row
        assert decide(progressed(row, event), NOON + 100 * ABANDONED_MS) is None
    later = progressed(row, progress(4, failed=1))
    decision = decide(later, NOON)
    assert decision is not None
    assert decision.outcome is Outcome.FAILED


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=8),
    st.integers(-2, 2),
    st.booleans(),
    st.data(),
)
def test_whatever_order_progress_is_heard_in_the_last_is_decided_on(
    batches: list[tuple[int, int]], missing: int, full: bool, data: Any
):
    """Delivered in any order and more than once: how the ingest stands in the end is how its last revision says."""
    expected = max(0, sum(seen + failed for seen, failed in batches) + missing)
    events, seen, failed = [], 0, 0
    for revision, (more_seen, more_failed) in enumerate(batches, start=1):
        seen, failed = seen + more_seen, failed + more_failed
        events.append(progress(revision, seen=seen, failed=failed, full=full, expected=expected))
    delivered = data.draw(st.permutations(events + data.draw(st.lists(st.sampled_from(events), max_size=6))))
    row, told = None, []
    for event in delivered:
        row = decode_row(encode_row(progressed(row, event)))
        assert row is not None
        decision = decide(row, NOON)
        if decision is not None:
            told.append((row.revision, decision.outcome))
            row = decided(row, NOON)
    assert row is not None
    final = decide(progressed(None, events[-1]), NOON)
    assert (row.decided_ms is not None) == (final is not None)
    if final is not None:
        assert told[-1] == (len(events), final.outcome)
    assert [revision for revision, _ in told] == sorted({revision for revision, _ in told})
    # A decision to mark is only ever made of an ingest of which nothing is missing and nothing was refused.
    marking = {revision for revision, one in told if one is Outcome.COMPLETE}
    for revision in marking:
        event = events[revision - 1]
        assert (event["seen"], event["failed"], event["full"]) == (expected, 0, True)
        assert expected > 0


def rows(*ingest_ids: str, **more: Any) -> list[Ingest]:
    """Rows of ingests of one source whose progress came at noon, before their end."""
    return [progressed(None, progress(seen=3, ingest_id=name, **more)) for name in ingest_ids]


def test_one_ingest_of_a_source_is_told_a_tick():
    """The others wait: an event's id follows from the tick and the source."""
    one, two = rows("a", "b")
    (other,) = rows("c", source_id="other.md")
    plan = plan_tick([two, other, one], NOON + ABANDONED_MS)
    assert sorted(row.ingest_id for row, _ in plan.told) == ["a", "c"]
    assert ([row.ingest_id for row in plan.left], plan.forgotten) == (["b"], [])


def test_what_was_decided_is_forgotten_a_day_later():
    """Until then it is kept, so that repeated progress is not decided again."""
    row = decided(progressed(None, progress()), NOON)
    assert row.due_ms == NOON + KEPT_MS
    assert plan_tick([row], NOON + KEPT_MS - 1) == ([], [], [row])
    assert plan_tick([row], NOON + KEPT_MS) == ([], [row], [])


def test_a_row_of_a_newer_release_stops_the_worker():
    """Rather than be misread."""
    with pytest.raises(ValueError, match="version 2"):
        decode_row(b"[2]")


def test_ingests_of_a_source_have_rows_of_their_own():
    """So have sources of an ingest, and no two of them share a key."""
    found = [
        progressed(None, progress(ingest_id=ingest_id, slot=slot, source_id=source_id)).row_key
        for ingest_id in ("a", "b")
        for slot in ("x", "xy")
        for source_id in ("y", "yy")
    ]
    assert len(set(found)) == len(found)
    assert replace(progressed(None, progress()), revision=9).row_key == progressed(None, progress()).row_key


@given(st.sampled_from(list(Outcome)), st.integers(0, 99), st.integers(0, 99), st.none() | st.integers(0, 99))
def test_every_end_but_the_complete_one_has_a_reason(
    outcome: Outcome, seen: int, failed: int, expected: int | None
) -> None:
    """This holds for any counts; no reason mentions refused chunks if none was refused."""
    reason = reason_of(outcome, Counted(seen, failed, expected))
    assert (reason is None) == (outcome is Outcome.COMPLETE)
    assert failed or "refused" not in (reason or "")


def test_more_chunks_than_the_end_told_of_are_named_as_the_reason() -> None:
    """It failed although no chunk was refused."""
    row = progressed(None, progress(seen=12))
    decision = decide(row, NOON)
    assert decision is not None
    reason = reason_of(decision.outcome, Counted(12, 0, 10))
    assert (decision.outcome, reason) == (
        Outcome.FAILED,
        "12 chunks arrived, but its end announced 10: which is right is unknown",
    )
