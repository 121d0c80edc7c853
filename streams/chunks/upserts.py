"""What submitted chunks of a source do to the stored ones, and to the counters of their ingests. Pure.

Invariants. The result depends only on the order of the log, not on how it was split into batches: repeated events
change nothing, and a stored chunk never returns to an earlier position of its partition. Each distinct chunk of an
ingest is counted once, as inserted, updated, unchanged or failed (R3.24). Unchanged chunks are not written (R3.3); a
vector is never erased (R3.7), and one of an earlier text is marked as stale (R3.11).

One ingest of a source is its latest: the one whose first chunk is last in the log. It supersedes earlier ones, whose
later chunks fail. The end of an ingest may be read before its chunks, so it begins none, except for one without chunks
that empties the source; the broker's time decides its place among the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple

from highwater.streams.chunks.states import Change, Outcome
from highwater.streams.wording import counted

RUNNING = "running"
# An ingest with one of these statuses may still change; an abandoned one continues when its chunks do.
OPEN = frozenset({RUNNING, Outcome.ABANDONED.value})

# Reasons of failures that a single chunk does not show.
REPEATED, SUPERSEDED, WRONG_DIMENSIONS = "repeated", "superseded", "wrong_dimensions"


class Refusal(NamedTuple):
    """Why a chunk cannot be stored."""

    reason: str
    detail: str


class Submitted(NamedTuple):
    """A submitted chunk; `place` is its topic/partition. One with a `refusal` is only counted."""

    ingest_id: str
    chunk_no: int
    content_hash: str
    content: str
    title: str | None
    url: str | None
    embedding: bytes | None
    published_at: datetime | None
    place: str
    partition: int
    offset: int
    arrived_ms: int
    refusal: Refusal | None = None


class End(NamedTuple):
    """The announced end of an ingest; `window` is JSON."""

    ingest_id: str
    is_full: bool
    is_forced: bool
    is_truncated: bool
    expected: int
    window: str | None
    place: str
    offset: int
    arrived_ms: int

    @property
    def empties(self) -> bool:
        """Return whether it means that the source has no chunks any more (R3.20)."""
        return self.expected == 0 and self.is_full and self.is_forced and not self.is_truncated


class Stored(NamedTuple):
    """A stored chunk; partition and offset are those of the last applied submission."""

    content_hash: str
    title: str | None
    url: str | None
    published_at: datetime | None
    has_embedding: bool
    is_stale: bool
    to_delete: bool
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Ingest:
    """An ingest of a source. `seen`: ranges of chunk numbers, first and one past the last, in order; `dealt`: offset by place."""

    ingest_id: str
    status: str = RUNNING
    is_full: bool = False
    is_forced: bool = False
    is_truncated: bool = False
    is_superseded: bool = False
    expected: int | None = None
    window: str | None = None
    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    failures: int = 0
    revision: int = 0
    seen: Sequence[tuple[int, int]] = ()
    dealt: Mapping[str, int] = field(default_factory=dict)

    @property
    def seen_count(self) -> int:
        """Return the number of distinct chunks that were stored or unchanged."""
        return self.inserted + self.updated + self.unchanged


@dataclass(frozen=True, slots=True)
class Source:
    """What is stored of a source. `rows` need only contain the submitted chunks, `ingests` theirs and the latest.

    `latest` is empty before one began; `refused` are known failures: ingest, chunk number and hash.
    """

    latest: str = ""
    began_ms: int = -(1 << 62)
    is_emptied: bool = False
    ingests: Mapping[str, Ingest] = field(default_factory=dict)
    rows: Mapping[int, Stored] = field(default_factory=dict)
    refused: Collection[tuple[str, int, str]] = ()


class Write(NamedTuple):
    """A chunk to be written. `embedding`: a submitted and accepted one; `is_stale`: the text changed after it, or without one."""

    said: Submitted
    kind: Change
    old_hash: str | None
    embedding: bytes | None
    is_stale: bool
    row: Stored

    @property
    def lacks_vector(self) -> bool:
        """Return whether it needs a vector."""
        return self.row.is_stale or not self.row.has_embedding


class Failure(NamedTuple):
    """A refused chunk; `is_new` if it is counted, which happens once per ingest."""

    said: Submitted
    refusal: Refusal
    is_new: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What to store: the source, chunks by number, changed ingests, and those of them to report.

    `passed`: to be written before `writes`, in order: texts that were replaced within the batch, so that the history of
    a chunk does not depend on the batches.
    """

    source: Source
    writes: Mapping[int, Write]
    ingests: Mapping[str, Ingest]
    told: Collection[str]
    failures: Sequence[Failure]
    dimensions: int | None
    passed: Sequence[Mapping[int, Write]] = ()


def plan_upserts(
    source: Source, submitted: Sequence[Submitted], ends: Sequence[End] = (), *, dimensions: int | None = None
) -> Plan:
    """Plan what a batch does to one source.

    Args:
        source: as stored.
        submitted: chunks, those of a partition in order.
        ends: ends of ingests, likewise.
        dimensions: dimension of the vectors of its namespace; None before the first, which sets it.
    """
    planner = _Planner(source, dimensions)
    for said in submitted:
        planner.submit(said)
    for end in ends:
        planner.end(end)
    return planner.plan()


@dataclass(slots=True)
class _Ledger:
    """An ingest while a batch is planned."""

    before: Ingest
    counts: dict[str, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    dealt: dict[str, int] = field(default_factory=dict)
    end: End | None = None
    is_superseded: bool = False
    is_told: bool = False

    def deal(self, place: str, offset: int) -> bool:
        """Return whether an event is new; it is processed now."""
        if offset <= self.dealt.get(place, -1):
            return False
        self.dealt[place] = offset
        return True

    def has_seen(self, chunk_no: int) -> bool:
        if chunk_no in self.seen:
            return True
        before = self.before.seen
        place = bisect_right(before, chunk_no, key=itemgetter(0))  # after the last range that may contain it
        return place > 0 and chunk_no < before[place - 1][1]

    def count(self, counter: str) -> None:
        self.counts[counter] = self.counts.get(counter, 0) + 1
        self.is_told = True


class _Planner:
    def __init__(self, source: Source, dimensions: int | None) -> None:
        self._source = source
        self._latest, self._began_ms, self._is_emptied = source.latest, source.began_ms, source.is_emptied
        self._dimensions = dimensions
        self._rows = dict(source.rows)
        self._writes: dict[int, Write] = {}
        self._passed: list[dict[int, Write]] = []
        self._ledgers: dict[str, _Ledger] = {}
        self._refused = set(source.refused)
        self._failures: list[Failure] = []

    def submit(self, submitted: Submitted) -> None:
        """Process one chunk."""
        ledger = self._ledger(submitted.ingest_id)
        if not ledger.deal(submitted.place, submitted.offset):
            return
        refusal = self._refusal(ledger, submitted)
        if refusal is not None:
            self._fail(ledger, submitted, refusal)
            return
        if submitted.embedding is not None:
            self._dimensions = len(submitted.embedding) // 4
        self._upsert(ledger, submitted)

    def end(self, end: End) -> None:
        """Accept the end of an ingest; the last announcement counts, until the ingest is decided."""
        ledger = self._ledger(end.ingest_id)
        if not ledger.deal(end.place, end.offset) or ledger.before.status not in OPEN:
            return
        ledger.end = end
        ledger.is_told = True
        if end.empties and not ledger.is_superseded and self._latest != end.ingest_id:
            if end.arrived_ms >= self._began_ms:
                self._begin(ledger, end.arrived_ms, is_emptied=True)
            else:
                ledger.is_superseded = True

    def _ledger(self, ingest_id: str) -> _Ledger:
        ledger = self._ledgers.get(ingest_id)
        if ledger is None:
            before = self._source.ingests.get(ingest_id) or Ingest(ingest_id)
            ledger = _Ledger(before, dealt=dict(before.dealt), is_superseded=before.is_superseded)
            self._ledgers[ingest_id] = ledger
        return ledger

    def _refusal(self, ledger: _Ledger, submitted: Submitted) -> Refusal | None:
        if not self._is_latest(ledger, submitted.arrived_ms):
            return Refusal(SUPERSEDED, f"ingest {self._latest} of this source began later")
        if submitted.refusal is not None:
            return submitted.refusal
        if submitted.embedding is not None and self._dimensions not in {None, len(submitted.embedding) // 4}:
            length = len(submitted.embedding) // 4
            return Refusal(
                WRONG_DIMENSIONS, f"embedding has {counted(length, 'value')}, the namespace's have {self._dimensions}"
            )
        row = self._rows.get(submitted.chunk_no)
        if row is not None and row.content_hash != submitted.content_hash and ledger.has_seen(submitted.chunk_no):
            return Refusal(REPEATED, f"chunk {submitted.chunk_no} had another text in this ingest")
        return None

    def _is_latest(self, ledger: _Ledger, arrived_ms: int) -> bool:
        if ledger.before.ingest_id == self._latest:
            return True
        if ledger.is_superseded:
            return False
        if self._is_emptied and arrived_ms < self._began_ms:
            ledger.is_superseded = True  # submitted before the source was emptied, and read after it
            return False
        self._begin(ledger, arrived_ms, is_emptied=False)
        return True

    def _begin(self, ledger: _Ledger, arrived_ms: int, *, is_emptied: bool) -> None:
        if self._latest:
            earlier = self._ledger(self._latest)
            earlier.is_superseded = True
            earlier.is_told |= earlier.before.status in OPEN
        self._latest, self._began_ms, self._is_emptied = ledger.before.ingest_id, arrived_ms, is_emptied

    def _fail(self, ledger: _Ledger, submitted: Submitted, refusal: Refusal) -> None:
        key = (submitted.ingest_id, submitted.chunk_no, submitted.content_hash)
        is_new = key not in self._refused
        self._failures.append(Failure(submitted, refusal, is_new))
        if is_new:
            self._refused.add(key)
            ledger.count("failures")

    def _upsert(self, ledger: _Ledger, submitted: Submitted) -> None:
        row = self._rows.get(submitted.chunk_no)
        is_counted = not ledger.has_seen(submitted.chunk_no)
        if row is None:
            if not is_counted:
                return  # removed since; repeating it does not restore it
            outcome = "inserted"
            self._insert(submitted)
        else:
            outcome = "updated" if self._update(row, submitted) else "unchanged"
        if is_counted:
            ledger.seen.add(submitted.chunk_no)
            ledger.count(outcome)

    def _insert(self, submitted: Submitted) -> None:
        has_embedding = submitted.embedding is not None
        row = _row(submitted, submitted.published_at, has_embedding=has_embedding, is_stale=False)
        self._rows[submitted.chunk_no] = row
        self._writes[submitted.chunk_no] = Write(
            submitted, Change.INSERTED, None, submitted.embedding, is_stale=False, row=row
        )

    def _update(self, row: Stored, submitted: Submitted) -> bool:
        """Update a chunk; return whether it differs from the stored one."""
        if row.partition == submitted.partition and row.offset >= submitted.offset:
            return False
        is_same = row.content_hash == submitted.content_hash
        takes = submitted.embedding is not None and (not is_same or row.is_stale or not row.has_embedding)
        published_at = row.published_at if submitted.published_at is None else submitted.published_at
        facts = (row.title, row.url, row.published_at)
        if is_same and not takes and not row.to_delete and facts == (submitted.title, submitted.url, published_at):
            return False
        is_stale = not takes and (row.is_stale if is_same else row.has_embedding)
        after = _row(submitted, published_at, has_embedding=takes or row.has_embedding, is_stale=is_stale)
        self._rows[submitted.chunk_no] = after
        self._write(submitted, after, takes=takes, is_same=is_same)
        return True

    def _write(self, submitted: Submitted, after: Stored, *, takes: bool, is_same: bool) -> None:
        stored, earlier = self._source.rows.get(submitted.chunk_no), self._writes.get(submitted.chunk_no)
        if earlier and earlier.said.arrived_ms < submitted.arrived_ms and _shown(earlier.row) != _shown(after):
            self._pass(submitted.chunk_no, earlier)
        embedding = submitted.embedding if takes else earlier and earlier.embedding
        # For a stored chunk the store itself knows whether it has a vector: one may be in progress.
        is_stale = False if takes else bool(earlier and earlier.is_stale) if is_same else bool(stored or embedding)
        kind = Change.INSERTED if stored is None else Change.REVIVED if stored.to_delete else Change.UPDATED
        old_hash = None if stored is None else stored.content_hash
        self._writes[submitted.chunk_no] = Write(submitted, kind, old_hash, embedding, is_stale, after)

    def _pass(self, chunk_no: int, write: Write) -> None:
        """Keep an intermediate text: after the earlier ones of the same chunk."""
        for layer in self._passed:
            if chunk_no not in layer:
                layer[chunk_no] = write
                return
        self._passed.append({chunk_no: write})

    def plan(self) -> Plan:
        """Return what to store."""
        after = {ingest_id: _after(ledger) for ingest_id, ledger in self._ledgers.items()}
        return Plan(
            source=Source(self._latest, self._began_ms, self._is_emptied),
            writes=self._writes,
            ingests={one: ingest for one, ingest in after.items() if ingest != self._source.ingests.get(one)},
            told=[ingest_id for ingest_id, ledger in self._ledgers.items() if ledger.is_told],
            failures=self._failures,
            dimensions=self._dimensions,
            passed=self._passed,
        )


def _shown(row: Stored) -> tuple[object, ...]:
    """Return the visible fields of a chunk."""
    return row.content_hash, row.title, row.url, row.published_at


def _row(submitted: Submitted, published_at: datetime | None, *, has_embedding: bool, is_stale: bool) -> Stored:
    return Stored(
        submitted.content_hash,
        submitted.title,
        submitted.url,
        published_at,
        has_embedding,
        is_stale,
        to_delete=False,
        partition=submitted.partition,
        offset=submitted.offset,
    )


def _after(ledger: _Ledger) -> Ingest:
    before, end, counts = ledger.before, ledger.end, ledger.counts
    return Ingest(
        before.ingest_id,
        before.status,
        is_full=end.is_full if end else before.is_full,
        is_forced=end.is_forced if end else before.is_forced,
        is_truncated=end.is_truncated if end else before.is_truncated,
        is_superseded=ledger.is_superseded,
        expected=end.expected if end else before.expected,
        window=end.window if end else before.window,
        inserted=before.inserted + counts.get("inserted", 0),
        updated=before.updated + counts.get("updated", 0),
        unchanged=before.unchanged + counts.get("unchanged", 0),
        failures=before.failures + counts.get("failures", 0),
        revision=before.revision + ledger.is_told,
        seen=united(before.seen, ledger.seen),
        dealt=ledger.dealt,
    )


def united(ranges: Sequence[tuple[int, int]], numbers: Collection[int]) -> Sequence[tuple[int, int]]:
    """Return ranges with more numbers in them; in order, and none adjacent to another."""
    if not numbers:
        return ranges
    return tuple(_joined(sorted([*ranges, *_runs(sorted(numbers))])))


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last + 1
            first = number
        last = number
    yield first, last + 1


def _joined(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    first, end = ranges[0]
    for following in ranges[1:]:
        if following[0] > end:
            yield first, end
            first, end = following
        else:
            end = max(end, following[1])
    yield first, end
