"""How warm a chunk is kept, and how often its namespace is searched (R3.21 to R3.23).

Invariant: a search counts once, by its event's position. Whether a namespace is hot follows from the searches of its
last seven days and its passport, at full hours (UTC), so a restarted worker rates it the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from highwater.schemas.chunks import NamespaceRated, QueriesServed
from highwater.schemas.errors import InvalidEventError
from highwater.streams.checks import check_time
from highwater.streams.chunks.identity import check_key_part
from highwater.streams.chunks.passports import Passport
from highwater.streams.chunks.states import Temperature
from highwater.streams.versioned_rows import RowForm

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
WINDOW_DAYS = 7
# Today, the six whole days before, the oldest partial day, and one for another process's clock that is ahead.
_DAYS_KEPT = WINDOW_DAYS + 2
# More than any process answers between two reports; beyond it a sum would exceed a bigint.
_QUERIES_MAX = 10**12
_FORM = RowForm(1, ("ns", "days", "partition", "offset", "looked_ms", "is_hot", "queries_per_day", "told_ms"))
# A hot namespace's index is rebuilt when a fifth of it is holes, another's when half of it is: a build of 100,000
# vectors takes half a minute of a core, which is not worth it for a rarely searched one.
DENSITY_MIN_HOT, DENSITY_MIN = 0.8, 0.5


def temperature(age_days: float, passport: Passport, is_hot: bool) -> Temperature:
    """Return how a chunk is kept: cold beyond `ttl_days` (strict, R3.18), hot up to `hot_days` in a hot namespace, else
    warm.

    Args:
        age_days: since it was published, or created if that is unknown; below 0 for a time in the future.
        passport: of its namespace.
        is_hot: whether its namespace is searched often.
    """
    if age_days > passport.ttl_days:
        return Temperature.COLD
    return Temperature.HOT if is_hot and age_days <= passport.hot_days else Temperature.WARM


def is_hot(queries_per_day: float, passport: Passport) -> bool:
    """Return whether this many searches a day make a namespace hot."""
    return queries_per_day >= passport.hot_queries_per_day


class IndexSize(NamedTuple):
    """The size of a vector index: the number of vectors and the bytes they take."""

    vectors: int
    bytes: int


def is_to_be_rebuilt(dense: IndexSize, now: IndexSize, *, is_hot: bool) -> bool:
    """Return whether a vector index has enough holes to be rebuilt: those of hot namespaces are kept dense (R3.21).

    Changed or removed chunks leave holes, which searches walk through.

    Args:
        dense: its size when it was built.
        now: the present vectors, and the bytes that the index takes.
        is_hot: whether its namespace is searched often.
    """
    if not dense.vectors or not dense.bytes or not now.bytes:
        return False
    density = (now.vectors / now.bytes) / (dense.vectors / dense.bytes)
    return density < (DENSITY_MIN_HOT if is_hot else DENSITY_MIN)


@dataclass(frozen=True, slots=True)
class NamespaceSearches:
    """The row of a namespace: searches by day (days since 1970, ascending), and the last report.

    `partition` and `offset` are those of the last event counted. `looked_ms` is the tick at which it was rated last, or
    the newest one known at its first search; `told_ms` that of the last report, 0 before.
    """

    ns: str
    days: tuple[tuple[int, int], ...] = ()
    partition: int = 0
    offset: int = -1
    looked_ms: int = 0
    is_hot: bool = False
    queries_per_day: float = 0.0
    told_ms: int = 0

    @property
    def due_ms(self) -> int:
        """Return the hour at which it is rated next."""
        return (self.looked_ms // HOUR_MS + 1) * HOUR_MS


def check_served(event: QueriesServed) -> None:
    """Check that searches have a namespace, a time and a number that is not negative.

    Raises:
        InvalidEventError: they have not.
    """
    check_key_part("ns", event["ns"])
    check_time("at", event["at"])
    if not 0 <= event["queries"] <= _QUERIES_MAX:
        raise InvalidEventError("bad_number", f"queries is {event['queries']}", field="queries")


def count(
    row: NamespaceSearches | None, event: QueriesServed, place: tuple[int, int], now_ms: int
) -> NamespaceSearches:
    """Return the row with an event's searches added; one that is included already changes nothing.

    Args:
        row: of the namespace.
        event: searches that were served.
        place: partition and offset of the event.
        now_ms: the newest tick known.

    Raises:
        InvalidEventError: a value is invalid.
    """
    check_served(event)
    held = row or NamespaceSearches(event["ns"], looked_ms=now_ms)
    partition, offset = place
    if partition == held.partition and offset <= held.offset:
        return held
    days = dict(held.days)
    day = event["at"] // DAY_MS
    days[day] = days.get(day, 0) + event["queries"]
    kept = tuple(sorted(days.items())[-_DAYS_KEPT:])
    return replace(held, days=kept, partition=partition, offset=offset)


def queries_per_day(row: NamespaceSearches, now_ms: int) -> float:
    """Return the searches per day over the last seven days; the oldest day counts with its remaining part.

    With whole days an evenly searched namespace would fall by a seventh at each midnight.
    """
    today, elapsed_ms = divmod(now_ms, DAY_MS)
    days = dict(row.days)
    whole = sum(days.get(today - back, 0) for back in range(WINDOW_DAYS))
    leaving = days.get(today - WINDOW_DAYS, 0)
    return (whole * DAY_MS + leaving * (DAY_MS - elapsed_ms)) / (WINDOW_DAYS * DAY_MS)


class Rating(NamedTuple):
    """The rating of a namespace at a tick: its row afterwards, and whether it is to be reported."""

    row: NamespaceSearches
    is_told: bool

    @property
    def is_over(self) -> bool:
        """Return whether nothing is left to report until it is searched again."""
        return not self.row.days and not self.row.is_hot and not self.row.queries_per_day


def rate(row: NamespaceSearches, passport: Passport, now_ms: int) -> Rating:
    """Rate a namespace. A change to or from hot is reported at once; else once a day, if the number of searches changed."""
    per_day = queries_per_day(row, now_ms)
    became = is_hot(per_day, passport)
    is_other_day = now_ms // DAY_MS > row.told_ms // DAY_MS
    is_told = became != row.is_hot or (is_other_day and per_day != row.queries_per_day)
    oldest = now_ms // DAY_MS - WINDOW_DAYS
    looked = replace(row, days=tuple(one for one in row.days if one[0] >= oldest), looked_ms=now_ms)
    if not is_told:
        return Rating(looked, is_told=False)
    return Rating(replace(looked, is_hot=became, queries_per_day=per_day, told_ms=now_ms), is_told=True)


def rated_event(row: NamespaceSearches, now_ms: int) -> NamespaceRated:
    """Return the event of a rating."""
    return {"ns": row.ns, "is_hot": row.is_hot, "queries_per_day": row.queries_per_day, "decided_at": now_ms}


def is_sweep_due(last_now_ms: int, now_ms: int) -> bool:
    """Return whether a tick is the first of its hour."""
    return now_ms // HOUR_MS > last_now_ms // HOUR_MS


def encode_row(row: NamespaceSearches) -> bytes:
    """Return the row as JSON."""
    return _FORM.encode([getattr(row, name) for name in _FORM.names])


def decode_row(data: bytes | None) -> NamespaceSearches | None:
    """Return the row of a namespace; None without one.

    Raises:
        ValueError: the row has an unknown form.
    """
    if data is None:
        return None
    ns, days, *rest = _FORM.decode(data)
    return NamespaceSearches(ns, tuple((day, queries) for day, queries in days), *rest)
