"""What the season agent knows of a match: a row of facts, how events merge into it, and when it is due next.

Invariant: a row holds the highest revision that was seen, despite repeated or late events, and every due time follows
from rows, options and the tick. An action for a row is recorded in it after the broker has acknowledged it, so a crash
repeats it and never forgets it.

The table holds two kinds of rows: of a match under `season NUL match_id`, and of a season under its own name, with the
start of the newest match window it was prewarmed for. No id or season contains a NUL (`streams/checks.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.league import MatchChanged
from highwater.streams.league.matches import State, Status
from highwater.streams.league.windows import (
    Prewarm,
    WindowOptions,
    live_ends_ms,
    match_window,
    maybe_prewarm_public_league_caches,
)
from highwater.streams.pages.windows import Window
from highwater.streams.versioned_rows import RowForm

_SEPARATOR = b"\0"


@dataclass(frozen=True, slots=True)
class Row:
    """A match as the season agent knows it; times are milliseconds since 1970.

    `over_told_ms` is the reported end of its live page, None before any.
    """

    season: str
    match_id: str
    revision: int
    kickoff_ms: int
    status: Status
    state: State
    home: str
    away: str
    finalized_ms: int | None = None
    over_told_ms: int | None = None

    @property
    def is_final(self) -> bool:
        """Return whether it has a result."""
        return self.state is State.FINAL

    @property
    def key(self) -> bytes:
        """Return its key in the table."""
        return match_key(self.season, self.match_id)


class DueReports(NamedTuple):
    """What to report at a tick: seasons to prewarm, and by season the rows whose live pages end now."""

    prewarms: list[Prewarm]
    over: dict[str, list[Row]]


def match_key(season: str, match_id: str) -> bytes:
    """Return the key of a match's row."""
    return season.encode() + _SEPARATOR + match_id.encode()


def season_key(season: str) -> bytes:
    """Return the key of a season's row."""
    return season.encode()


def is_match_key(key: bytes) -> bool:
    """Return whether a key is that of a match, not of a season."""
    return _SEPARATOR in key


def apply_changed(row: Row | None, event: MatchChanged) -> Row:
    """Return the row after a change; an older revision than the known one changes nothing.

    Raises:
        InvalidEventError: its status or state is invalid.
    """
    if row is not None and event["revision"] < row.revision:
        return row
    try:
        status, state = Status(event["status"]), State(event["state"])
    except ValueError as error:
        raise InvalidEventError("bad_state", str(error)) from error
    return Row(
        season=event["season"],
        match_id=event["match_id"],
        revision=event["revision"],
        kickoff_ms=event["kickoff"],
        status=status,
        state=state,
        home=event["home"],
        away=event["away"],
        finalized_ms=event["finalized_at"],
        over_told_ms=None if row is None else row.over_told_ms,
    )


def due_ms(row: Row, prewarmed_ms: int | None, options: WindowOptions, now_ms: int) -> int | None:
    """Return when a row is due next; None if everything about it has been reported.

    Args:
        row: the match.
        prewarmed_ms: start of the newest window its season was prewarmed for.
        options: of windows.
        now_ms: the newest tick known; an older one only causes one more check of the row.
    """
    window = match_window(row, options)
    if window is not None and now_ms < window[1] and (prewarmed_ms is None or window[0] > prewarmed_ms):
        return window[0]
    ends_ms = live_ends_ms(row, options)
    return None if ends_ms == row.over_told_ms else ends_ms


def judge(rows: Iterable[Row], prewarmed: Mapping[str, int], options: WindowOptions, now_ms: int) -> DueReports:
    """Decide what is due for these rows. A season appears once in each part, however many of its matches are due."""
    windows: dict[str, list[Window]] = {}
    over: dict[str, list[Row]] = {}
    for row in rows:
        window = match_window(row, options)
        if window is not None:
            windows.setdefault(row.season, []).append(window)
        ends_ms = live_ends_ms(row, options)
        if ends_ms is not None and ends_ms <= now_ms and ends_ms != row.over_told_ms:
            over.setdefault(row.season, []).append(row)
    return DueReports(maybe_prewarm_public_league_caches(windows, prewarmed, now_ms), dict(sorted(over.items())))


def with_end_reported(row: Row, options: WindowOptions) -> Row:
    """Return the row after the end of its live page was reported."""
    return replace(row, over_told_ms=live_ends_ms(row, options))


_FORM = RowForm(1, tuple(field.name for field in fields(Row)))
_SEASON_FORM = RowForm(1, ("prewarmed_ms",))


def encode_row(row: Row) -> bytes:
    """Return the row as JSON."""
    return _FORM.encode([getattr(row, name) for name in _FORM.names])


def decode_row(data: bytes | None) -> Row | None:
    """Return the row of a match; None without one.

    Raises:
        ValueError: the row has an unknown form.
    """
    if data is None:
        return None
    facts = _FORM.decode(data)
    season, match_id, revision, kickoff_ms, status, state, home, away, finalized_ms, over_told_ms = facts
    return Row(
        season, match_id, revision, kickoff_ms, Status(status), State(state), home, away, finalized_ms, over_told_ms
    )


def encode_season(prewarmed_ms: int) -> bytes:
    """Return the row of a season: the start of the newest window it was prewarmed for."""
    return _SEASON_FORM.encode([prewarmed_ms])


def decode_season(data: bytes | None) -> int | None:
    """Return the start of the newest window that a season was prewarmed for; None before any.

    Raises:
        ValueError: the row has an unknown form.
    """
    return None if data is None else int(_SEASON_FORM.decode(data)[0])
