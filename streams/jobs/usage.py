"""The usage of an organization in a month, and when its totals are published (R2.35 to R2.37).

Invariant: every usage of an organization and period counts once, by its number: numbers have no gaps and start from 1,
so repeated and late ones are recognized by them. Totals are absolute and only grow. Whether and when a row is published
follows from the row and the tick, so a restarted worker publishes at the same boundary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.jobs import UsageFlushed, UsageRecorded
from highwater.streams.checks import check_id
from highwater.streams.versioned_rows import RowForm

# Totals reach PostgreSQL every quarter of an hour by the product's clock in UTC: a lost Redis costs at most that (R2.37).
FLUSH_MS = 15 * 60 * 1000
# Numbers that arrived before a missing one. They come in order except for repeats, so any is a sign of a lost event.
# Beyond this limit events are dead-lettered, from where they can be sent again, so that a row does not grow without
# end.
AHEAD_MAX = 1_000
_PERIOD = re.compile("([0-9]{4})-(0[1-9]|1[0-2])")
# The last year of a datetime has no month after its last.
_YEAR_MAX = 9_998
_AMOUNTS: tuple[Literal["presentations", "slides", "tokens", "cost_cents"], ...] = (
    "presentations",
    "slides",
    "tokens",
    "cost_cents",
)
_FORM = RowForm(1, ("organization_id", "period", "upto_seq", "ahead", *_AMOUNTS, "since_ms"))
_SEPARATOR = b"\0"


@dataclass(frozen=True, slots=True)
class Totals:
    """The row of an organization and period (YYYY-MM, UTC).

    `upto_seq` is the last counted number of the run without gaps, `ahead` are those counted beyond a gap, ascending.
    `since_ms` is when the first unpublished usage was counted, None if all were published.
    """

    organization_id: str
    period: str
    upto_seq: int = 0
    ahead: tuple[int, ...] = ()
    presentations: int = 0
    slides: int = 0
    tokens: int = 0
    cost_cents: int = 0
    since_ms: int | None = None

    @property
    def key(self) -> bytes:
        """Return its key in the table."""
        return row_key(self.organization_id, self.period)

    @property
    def due_ms(self) -> int | None:
        """Return the boundary at which it is published next; None if everything in it has been published."""
        return None if self.since_ms is None else next_boundary_ms(self.since_ms)


def row_key(organization_id: str, period: str) -> bytes:
    """Return the key of a row; no id contains a NUL (`streams/checks.py`)."""
    return organization_id.encode() + _SEPARATOR + period.encode()


def next_boundary_ms(now_ms: int) -> int:
    """Return the first quarter of an hour after a time, in ms since 1970."""
    return (now_ms // FLUSH_MS + 1) * FLUSH_MS


def count(row: Totals | None, event: UsageRecorded, now_ms: int) -> Totals:
    """Return the row with a usage added; a usage that it already contains changes nothing.

    Args:
        row: the current row of the event's organization and period.
        event: a usage.
        now_ms: the newest known tick.

    Raises:
        InvalidEventError: a value cannot be usage, or too many numbers before it are missing.
    """
    _check(event)
    held = row or Totals(event["organization_id"], event["period"])
    seq = event["seq"]
    if seq <= held.upto_seq or seq in held.ahead:
        return held
    upto_seq, ahead = _with(held, seq)
    if len(ahead) > AHEAD_MAX:
        raise InvalidEventError("usage_missing", f"usage {held.upto_seq + 1} of {held.period} is missing before {seq}")
    return replace(
        held,
        upto_seq=upto_seq,
        ahead=ahead,
        presentations=held.presentations + event["presentations"],
        slides=held.slides + event["slides"],
        tokens=held.tokens + event["tokens"],
        cost_cents=held.cost_cents + event["cost_cents"],
        since_ms=now_ms if held.since_ms is None else held.since_ms,
    )


def _check(event: UsageRecorded) -> None:
    if event["seq"] < 1:
        raise InvalidEventError("bad_seq", f"seq {event['seq']} is below 1", field="seq")
    _check_totals(event)


def check_flushed(event: UsageFlushed) -> None:
    """Check that totals name a month and that none is negative.

    Raises:
        InvalidEventError: they do not.
    """
    if event["upto_seq"] < 0:
        raise InvalidEventError("bad_seq", f"upto_seq {event['upto_seq']} is negative", field="upto_seq")
    _check_totals(event)


def _check_totals(event: UsageRecorded | UsageFlushed) -> None:
    check_id("organization_id", event["organization_id"])
    month_of(event["period"])
    for name in _AMOUNTS:
        if event[name] < 0:
            raise InvalidEventError("bad_amount", f"{name} is {event[name]}; usage only grows", field=name)


def month_of(period: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return year and month of a period, and of the one after it.

    Raises:
        InvalidEventError: it is not YYYY-MM.
    """
    found = _PERIOD.fullmatch(period)
    year, month = (0, 0) if found is None else (int(found[1]), int(found[2]))
    if not 1 <= year <= _YEAR_MAX:
        raise InvalidEventError("bad_period", f"{period[:32]!r} is not a month, YYYY-MM", field="period")
    return (year, month), (year + month // 12, month % 12 + 1)


def _with(totals: Totals, seq: int) -> tuple[int, tuple[int, ...]]:
    """Return the run without gaps and the numbers beyond it, with one number added."""
    upto, ahead = totals.upto_seq, sorted({*totals.ahead, seq})
    while ahead and ahead[0] == upto + 1:
        upto = ahead.pop(0)
    return upto, tuple(ahead)


def plan_flush(rows: Iterable[Totals], now_ms: int) -> tuple[list[Totals], list[Totals]]:
    """Return the rows to publish at a tick, and the due ones that wait for the next.

    At most one period of an organization is published per tick, the oldest first, since the id of an event follows from
    the tick and the organization.
    """
    told: dict[str, Totals] = {}
    left: list[Totals] = []
    for row in sorted(rows, key=lambda row: (row.organization_id, row.period)):
        if row.due_ms is None or row.due_ms > now_ms:
            continue
        if row.organization_id in told:
            left.append(row)
        else:
            told[row.organization_id] = row
    return list(told.values()), left


def flushed_event(row: Totals, now_ms: int) -> UsageFlushed:
    """Return the event with the totals."""
    return {
        "organization_id": row.organization_id,
        "period": row.period,
        "upto_seq": row.upto_seq,
        "presentations": row.presentations,
        "slides": row.slides,
        "tokens": row.tokens,
        "cost_cents": row.cost_cents,
        "at": now_ms,
    }


def flushed(row: Totals) -> Totals:
    """Return the row after its totals were published."""
    return replace(row, since_ms=None)


def encode_row(row: Totals) -> bytes:
    """Return the row as JSON."""
    return _FORM.encode([getattr(row, name) for name in _FORM.names])


def decode_row(data: bytes | None) -> Totals | None:
    """Return the row of an organization and period; None if there is none.

    Raises:
        ValueError: the row has a format that this version does not support.
    """
    if data is None:
        return None
    organization_id, period, upto_seq, ahead, *rest = _FORM.decode(data)
    return Totals(organization_id, period, upto_seq, tuple(ahead), *rest)
