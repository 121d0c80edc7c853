"""The upsert planner, beside a naive model that takes one event after the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from highwater.streams.chunks.states import Change
from highwater.streams.chunks.upserts import (
    REPEATED,
    SUPERSEDED,
    WRONG_DIMENSIONS,
    End,
    Ingest,
    Plan,
    Refusal,
    Source,
    Stored,
    Submitted,
    plan_upserts,
    united,
)

DATA, ENDS = "chunks.chunk-submitted", "chunks.ingest-finished"
DATES = [None, datetime(2024, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)]


def said(
    number: int = 0,
    text: str = "a",
    *,
    ingest: str = "A",
    at: int = 0,
    partition: int = 0,
    arrived_ms: int | None = None,
    title: str | None = None,
    vector: bytes | None = None,
    published: datetime | None = None,
    refusal: Refusal | None = None,
) -> Submitted:
    """Return a chunk whose hash depends on its number and text."""
    return Submitted(
        ingest, number, f"{number}:{text}", text, title, None, vector, published, f"{DATA}/{partition}", partition, at,
        at if arrived_ms is None else arrived_ms, refusal,
    )  # fmt: skip


def end(
    expected: int = 0, *, ingest: str = "A", at: int = 0, arrived_ms: int = 0, full: bool = True, force: bool = False
) -> End:
    """The end of an ingest."""
    return End(ingest, full, force, False, expected, None, f"{ENDS}/0", at, arrived_ms)


# -- the store, as the sink's statements leave it -------------------------------------------------------------------------


@dataclass
class Row:
    """A chunk with its vector itself."""

    text: str
    content_hash: str
    title: str | None
    published: datetime | None
    vector: bytes | None
    is_stale: bool
    to_delete: bool
    place: tuple[int, int]
    ingest: str
    writes: int = 1


@dataclass
class Store:
    """All that is stored of a source, and of its namespace the length of vectors."""

    rows: dict[int, Row] = field(default_factory=dict)
    ingests: dict[str, Ingest] = field(default_factory=dict)
    source: Source = field(default_factory=Source)
    refused: set[tuple[str, int, str]] = field(default_factory=set)
    dimensions: int | None = None
    changes: list[tuple[Change, int, str | None, str]] = field(default_factory=list)

    def stored(self) -> dict[int, Stored]:
        """Rows as the planner sees them."""
        return {
            number: Stored(
                row.content_hash,
                row.title,
                None,
                row.published,
                row.vector is not None,
                row.is_stale,
                row.to_delete,
                *row.place,
            )
            for number, row in self.rows.items()
        }

    def take(self, submitted: Sequence[Submitted], ends: Sequence[End] = ()) -> Plan:
        """Plan a batch and store it."""
        source = replace(self.source, ingests=self.ingests, rows=self.stored(), refused=self.refused)
        plan = plan_upserts(source, submitted, ends, dimensions=self.dimensions)
        self.source, self.dimensions = plan.source, plan.dimensions
        self.ingests = {**self.ingests, **plan.ingests}
        self.refused |= {(f.said.ingest_id, f.said.chunk_no, f.said.content_hash) for f in plan.failures if f.is_new}
        for number, write in plan.writes.items():
            before = self.rows.get(number)
            # As `store_chunks` has it.
            vector = write.embedding if before is None or write.embedding is not None else before.vector
            is_stale = write.is_stale if before is None else (
                vector is not None if write.is_stale else write.embedding is None and before.is_stale
            )  # fmt: skip
            published = write.row.published_at or (before and before.published)
            self.rows[number] = Row(
                write.said.content, write.said.content_hash, write.said.title, published, vector, is_stale,
                to_delete=False, place=(write.said.partition, write.said.offset), ingest=write.said.ingest_id,
            )  # fmt: skip
            self.changes.append((write.kind, number, write.old_hash, write.said.content_hash))
            assert (write.kind is Change.INSERTED) == (before is None)
            assert (write.kind is Change.REVIVED) == (before is not None and before.to_delete)
            assert write.lacks_vector == (vector is None or is_stale)
            assert (write.row.has_embedding, write.row.is_stale) == (vector is not None, is_stale)
        return plan

    def facts(self) -> dict[str, Any]:
        """The facts that must not depend on the batches of the log."""
        ingests = {
            name: replace(one, revision=0, dealt=dict(one.dealt), seen=tuple(one.seen))
            for name, one in self.ingests.items()
        }
        return {
            "rows": self.rows,
            "ingests": ingests,
            "source": self.source,
            "refused": self.refused,
            "dimensions": self.dimensions,
        }


# -- the model: one event after the other, as the requirements ask ---------------------------------------------------------


class Model:
    """R3.1 to R3.12 and R3.24 by the book, for one source; nothing of the planner in it."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.latest = ""
        self.begun: list[str] = []
        self.emptied_ms: int | None = None
        self.began_ms = -(1 << 62)
        self.late: set[str] = set()
        self.seen: dict[str, dict[int, str]] = {}
        self.failed: dict[str, set[tuple[int, str]]] = {}
        self.reasons: list[str] = []
        self.dealt: set[tuple[str, str, int]] = set()
        self.ends: dict[str, End] = {}
        self.dimensions: int | None = None

    def take(self, event: Submitted | End) -> None:
        """One event."""
        if any(one[:2] == (event.ingest_id, event.place) and one[2] >= event.offset for one in self.dealt):
            return
        self.dealt.add((event.ingest_id, event.place, event.offset))
        self.seen.setdefault(event.ingest_id, {})
        self.failed.setdefault(event.ingest_id, set())
        if isinstance(event, Submitted):
            self.chunk(event)
        else:
            self.finish(event)

    def finish(self, event: End) -> None:
        """Forced, full and without chunks, it empties the source."""
        self.ends[event.ingest_id] = event
        if (
            event.expected == 0
            and event.is_full
            and event.is_forced
            and event.ingest_id not in [*self.begun, *self.late]
        ):
            if event.arrived_ms >= self.began_ms:
                self.begun.append(event.ingest_id)
                self.began_ms = self.emptied_ms = event.arrived_ms
            else:
                self.late.add(event.ingest_id)

    def chunk(self, event: Submitted) -> None:
        """A chunk is refused, or one of inserted, updated, unchanged."""
        if event.ingest_id not in [*self.begun, *self.late]:
            if self.emptied_ms is not None and event.arrived_ms < self.emptied_ms:
                self.late.add(event.ingest_id)
            else:
                self.begun.append(event.ingest_id)
                self.began_ms, self.emptied_ms = event.arrived_ms, None
        reason = self.reason(event)
        if reason is not None:
            self.reasons.append(reason)
            self.failed[event.ingest_id].add((event.chunk_no, event.content_hash))
            return
        if event.embedding is not None:
            self.dimensions = len(event.embedding) // 4
        known = self.seen[event.ingest_id]
        row = self.rows.get(event.chunk_no)
        if row is None and event.chunk_no in known:
            return
        outcome = self.upsert(event, row)
        known.setdefault(event.chunk_no, outcome)

    def reason(self, event: Submitted) -> str | None:
        """Why a chunk is refused."""
        if event.ingest_id in self.late or self.begun[-1] != event.ingest_id:
            return SUPERSEDED
        if event.refusal is not None:
            return event.refusal.reason
        if event.embedding is not None and self.dimensions is not None and len(event.embedding) != 4 * self.dimensions:
            return WRONG_DIMENSIONS
        row = self.rows.get(event.chunk_no)
        if event.chunk_no in self.seen[event.ingest_id] and row is not None and row.content_hash != event.content_hash:
            return REPEATED
        return None

    def upsert(self, event: Submitted, row: Row | None) -> str:
        """The change of its row."""
        place = (event.partition, event.offset)
        if row is None:
            self.rows[event.chunk_no] = Row(
                event.content, event.content_hash, event.title, event.published_at, event.embedding, is_stale=False,
                to_delete=False, place=place, ingest=event.ingest_id,
            )  # fmt: skip
            return "inserted"
        if row.place[0] == place[0] and row.place[1] >= place[1]:
            return "unchanged"
        after = replace(row, title=event.title, published=event.published_at or row.published, to_delete=False)
        if event.content_hash != row.content_hash:
            after = replace(after, text=event.content, content_hash=event.content_hash)
            if event.embedding is not None:
                after = replace(after, vector=event.embedding, is_stale=False)
            else:
                after = replace(after, is_stale=row.vector is not None)
        elif event.embedding is not None and (row.vector is None or row.is_stale):
            after = replace(after, vector=event.embedding, is_stale=False)
        if after == row:
            return "unchanged"
        self.rows[event.chunk_no] = replace(after, place=place, ingest=event.ingest_id)
        return "updated"


def agrees(store: Store, model: Model) -> None:
    """The store holds what the model says."""
    assert store.rows == model.rows
    assert store.dimensions == model.dimensions
    assert set(store.ingests) == set(model.seen)
    latest = model.begun[-1] if model.begun else ""
    assert store.source.latest == latest
    for name, one in store.ingests.items():
        outcomes = list(model.seen[name].values())
        counted = [outcomes.count(outcome) for outcome in ("inserted", "updated", "unchanged")]
        assert [one.inserted, one.updated, one.unchanged] == counted
        assert one.failures == len(model.failed[name])
        assert [number for first, last in one.seen for number in range(first, last)] == sorted(model.seen[name])
        assert one.is_superseded == (name in model.late or (name in model.begun and name != latest))
        told = model.ends.get(name)
        assert one.expected == (told and told.expected)


# -- texts that are replaced within a batch -----------------------------------------------------------------------------------


def test_what_stood_for_a_while_is_written_before_what_replaced_it():
    """Each text of each chunk is written in order; the last one is the reported write."""
    batch = [
        said(0, "a", at=1), said(1, "a", at=2), said(0, "b", ingest="B", at=3), said(1, "a", ingest="B", at=4),
        said(0, "b", title="T", ingest="C", at=5), said(1, "b", ingest="C", at=6),
    ]  # fmt: skip
    plan = plan_upserts(Source(), batch)
    assert [{number: write.said.offset for number, write in layer.items()} for layer in plan.passed] == [
        {0: 1, 1: 2},
        {0: 3},
    ]
    assert {number: write.said.offset for number, write in plan.writes.items()} == {0: 5, 1: 6}


def test_what_stood_for_no_time_is_not_written():
    """If texts arrived in the same millisecond, the last one counts."""
    batch = [said(0, "a", at=1, arrived_ms=7), said(0, "b", ingest="B", at=2, arrived_ms=7)]
    assert plan_upserts(Source(), batch).passed == []


# -- strategies -------------------------------------------------------------------------------------------------------------


VECTORS = [None, None, b"\0\0\x80?" * 2, b"\0\0\0@" * 2, b"\0\0\x80?"]
REFUSALS = [None, None, None, None, Refusal("bad_number", "")]


@st.composite
def logs(draw: st.DrawFn) -> list[Submitted | End | str]:
    """Events of three ingests of one source on two partitions, ends among them, and what others do to rows meanwhile."""
    events: list[Submitted | End | str] = []
    offsets = [0, 0, 0]
    arrived_ms = 0
    for _ in range(draw(st.integers(0, 30))):
        arrived_ms += draw(st.integers(0, 2))
        what = draw(st.sampled_from(["chunk"] * 8 + ["end", "embed", "mark", "remove"]))
        ingest = draw(st.sampled_from("ABC"))
        if what == "chunk":
            partition = draw(st.sampled_from([0, 0, 0, 1]))
            offsets[partition] += 1
            events.append(
                said(
                    draw(st.integers(0, 3)),
                    draw(st.sampled_from("ab")),
                    ingest=ingest,
                    at=offsets[partition],
                    partition=partition,
                    arrived_ms=arrived_ms,
                    title=draw(st.sampled_from([None, None, "T"])),
                    vector=draw(st.sampled_from(VECTORS)),
                    published=draw(st.sampled_from(DATES)),
                    refusal=draw(st.sampled_from(REFUSALS)),
                )
            )
        elif what == "end":
            offsets[2] += 1
            late = draw(st.integers(-2, 0))
            force = draw(st.booleans())
            expected = draw(st.sampled_from([0, 0, 3]))
            events.append(end(expected, ingest=ingest, at=offsets[2], arrived_ms=arrived_ms + late, force=force))
        else:
            events.append(f"{what} {draw(st.integers(0, 3))}")
    return events


def disturb(rows: dict[int, Row], what: str) -> None:
    """Change rows like the backfill, the orphan marking and the sweep."""
    action, number = what.split()
    row = rows.get(int(number))
    if row is None:
        return
    if action == "embed" and (row.vector is None or row.is_stale):
        rows[int(number)] = replace(row, vector=b"\0\0\x40\x40" * 2, is_stale=False)
    elif action == "mark":
        rows[int(number)] = replace(row, to_delete=True)
    elif action == "remove" and row.to_delete:
        del rows[int(number)]


def run(store: Store, log: Iterable[Submitted | End | str], batch_max: int) -> Store:
    """Take a log in batches; a batch ends where rows are disturbed, and where the other topic begins."""
    held: list[Any] = []

    def flush() -> None:
        if held:
            store.take([e for e in held if isinstance(e, Submitted)], [e for e in held if isinstance(e, End)])
            held.clear()

    for event in log:
        if isinstance(event, str):
            flush()
            disturb(store.rows, event)
            continue
        if held and (len(held) == batch_max or isinstance(held[-1], End) > isinstance(event, End)):
            flush()
        held.append(event)
    flush()
    return store


# -- properties --------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R3.4", "R3.12")
@settings(max_examples=200, deadline=None)
@given(logs(), st.integers(1, 40))
@example([said(at=1, vector=b"\0\0\x80?"), said(text="b", ingest="B", at=2), said(text="a", ingest="C", at=3)], 3)
@example([said(at=1), said(text="b", ingest="B", at=2)], 2)
def test_any_log_in_any_batches_leaves_what_the_model_says(log: list[Submitted | End | str], batch_max: int):
    """Rows with their vectors, counters, seen numbers, the latest ingest and those it superseded, failures once each."""
    store, model = run(Store(), log, batch_max), Model()
    for event in log:
        if isinstance(event, str):
            disturb(model.rows, event)
        else:
            model.take(event)
    agrees(store, model)


@settings(max_examples=200, deadline=None)
@given(logs(), st.integers(1, 40), st.integers(1, 40))
def test_batches_leave_no_trace(log: list[Submitted | End | str], one: int, other: int):
    """The result does not depend on how the log is cut into batches, so a lost batch may be cut differently."""
    assert run(Store(), log, one).facts() == run(Store(), log, other).facts()


@settings(max_examples=200, deadline=None)
@given(logs(), st.integers(1, 40), st.integers(0, 30))
def test_a_log_read_again_changes_nothing(log: list[Submitted | End | str], batch_max: int, start: int):
    """From any offset on, nothing is written, counted or reported, and no ingest is superseded."""
    store = run(Store(), log, 7)
    before, told = store.facts(), [one.revision for one in store.ingests.values()]
    rows = dict(store.rows)
    store.changes.clear()
    run(store, [event for event in log[start:] if not isinstance(event, str)], batch_max)
    assert (store.facts(), store.rows, store.changes) == (before, rows, [])
    assert [one.revision for one in store.ingests.values()] == told


@pytest.mark.requirement("R3.24")
@given(logs())
def test_each_distinct_chunk_is_counted_once(log: list[Submitted | End | str]):
    """The counters add up to the number of distinct chunk numbers, and failures to the named ones (R3.24)."""
    store = run(Store(), log, 5)
    for name, one in store.ingests.items():
        assert one.seen_count == sum(last - first for first, last in one.seen)
        assert one.failures == len([failure for failure in store.refused if failure[0] == name])


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_ranges_hold_the_numbers_they_were_given(one: set[int], other: set[int]):
    """In order, and none next to another."""
    made = united(united((), one), other)
    assert [number for first, last in made for number in range(first, last)] == sorted(one | other)
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(made))


# -- cases ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R3.3")
def test_an_unchanged_chunk_is_not_written():
    """It is counted, and the plan holds no row of it (R3.3)."""
    store = Store()
    store.take([said(at=1), said(1, at=2)])
    plan = store.take([said(ingest="B", at=3), said(1, ingest="B", at=4)])
    assert not plan.writes
    assert (plan.ingests["B"].unchanged, plan.ingests["B"].seen) == (2, ((0, 2),))
    assert plan.ingests["A"].is_superseded
    assert set(plan.told) == {"A", "B"}


@pytest.mark.requirement("R3.8")
def test_a_vector_that_came_with_the_same_text_is_taken_only_where_one_is_missing():
    """Else it is left where it is (R3.8)."""
    store = Store()
    store.take([said(at=1)])
    taken = store.take([said(ingest="B", at=2, vector=b"\0\0\x80?")])
    assert (taken.ingests["B"].updated, store.rows[0].vector) == (1, b"\0\0\x80?")
    left = store.take([said(ingest="C", at=3, vector=b"\0\0\0@")])
    assert (left.ingests["C"].unchanged, store.rows[0].vector, left.writes) == (1, b"\0\0\x80?", {})


@pytest.mark.requirement("R3.7", "R3.11")
def test_another_text_keeps_the_vector_and_says_that_it_is_stale():
    """Until one comes, or is made (R3.7, R3.11)."""
    store = Store()
    store.take([said(at=1, vector=b"\0\0\x80?")])
    store.take([said(text="b", ingest="B", at=2)])
    assert (store.rows[0].vector, store.rows[0].is_stale) == (b"\0\0\x80?", True)
    store.take([said(text="c", ingest="C", at=3, vector=b"\0\0\0@")])
    assert (store.rows[0].vector, store.rows[0].is_stale) == (b"\0\0\0@", False)


@pytest.mark.requirement("R3.6")
def test_another_title_updates_without_touching_the_vector():
    """R3.6."""
    store = Store()
    store.take([said(at=1, vector=b"\0\0\x80?")])
    plan = store.take([said(ingest="B", at=2, title="T")])
    assert (plan.ingests["B"].updated, store.rows[0].is_stale, store.rows[0].title) == (1, False, "T")


@pytest.mark.requirement("R3.20")
def test_a_marked_chunk_is_revived():
    """Counted as updated, though nothing of it changed (R3.20)."""
    store = Store()
    store.take([said(at=1)])
    store.rows[0].to_delete = True
    plan = store.take([said(ingest="B", at=2)])
    assert (plan.ingests["B"].updated, plan.writes[0].kind, store.rows[0].to_delete) == (1, Change.REVIVED, False)


def test_a_row_past_the_event_is_not_written():
    """Though nothing is known of the event's ingest any more: history never rolls content back."""
    store = Store()
    store.take([said(text="new", at=9)])
    store.ingests, store.source = {}, Source()
    plan = store.take([said(text="old", ingest="B", at=4)])
    assert (plan.writes, plan.ingests["B"].unchanged, store.rows[0].text) == ({}, 1, "new")


def test_the_end_of_an_ingest_begins_none():
    """It may overtake chunks, also those of the ingest before it, which still are stored."""
    store = Store()
    store.take([said(at=1)])
    store.take([], [end(1, ingest="B", at=1, arrived_ms=99)])
    plan = store.take([said(1, at=2), said(2, ingest="B", at=3), said(3, at=4)])
    assert (plan.ingests["A"].inserted, plan.ingests["A"].failures) == (2, 1)
    assert plan.failures[0].refusal.reason == SUPERSEDED


def test_a_source_that_was_emptied_refuses_what_was_submitted_before():
    """And takes what came later, whichever is read first."""
    store = Store()
    store.take([], [end(0, ingest="B", at=1, arrived_ms=5, force=True)])
    early = store.take([said(at=1, arrived_ms=4)])
    assert (early.failures[0].refusal.reason, early.ingests["A"].is_superseded, store.rows) == (SUPERSEDED, True, {})
    store.take([said(ingest="C", at=2, arrived_ms=5)])
    assert (store.source.latest, store.ingests["B"].is_superseded) == ("C", True)
    store.take([], [end(0, ingest="D", at=2, arrived_ms=4, force=True)])
    assert (store.source.latest, store.ingests["D"].is_superseded) == ("C", True)


def test_an_end_after_the_decision_changes_nothing():
    """The decision used the earlier end; an abandoned ingest continues."""
    for status, expected in (("complete", 1), ("abandoned", 2), ("running", 2)):
        store = Store()
        store.take([said(at=1)], [end(1, at=1)])
        store.ingests["A"] = replace(store.ingests["A"], status=status)
        plan = store.take([], [end(2, at=2)])
        assert store.ingests["A"].expected == expected
        assert list(plan.told) == ([] if expected == 1 else ["A"])


def test_what_superseded_a_decided_ingest_tells_nothing_of_it():
    """The superseded state is stored, so that late chunks are refused."""
    store = Store()
    store.take([said(at=1)])
    store.ingests["A"] = replace(store.ingests["A"], status="complete")
    plan = store.take([said(ingest="B", at=2)])
    assert (plan.told, plan.ingests["A"].is_superseded) == (["B"], True)


def test_the_first_vector_sets_the_length_of_all():
    """One of a chunk that is refused does not; another length is a failure."""
    store = Store()
    plan = store.take([
        said(0, at=1, vector=b"\0\0\x80?", refusal=Refusal("bad_number", "")),
        said(1, at=2, vector=b"\0\0\x80?" * 2),
        said(2, at=3, vector=b"\0\0\x80?"),
    ])  # fmt: skip
    assert (plan.dimensions, plan.failures[1].refusal.reason) == (2, WRONG_DIMENSIONS)
    assert "1 value," in plan.failures[1].refusal.detail
