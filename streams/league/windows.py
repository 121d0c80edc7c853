"""Match windows: when the pages of a season are hot (R4.9 to R4.12).

Invariant: windows follow from matches, options and `now_ms` alone. Their meaning for a page:
`streams/pages/windows.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from highwater.streams.league.matches import Status
from highwater.streams.pages.kinds import STALE_SECONDS_OUTSIDE_MAX, WEEK_SECONDS
from highwater.streams.pages.windows import Window
from highwater.streams.settings import Settings

# A match without a result counts as over after its duration; one that lasts longer (extra time, penalties, a storm) is
# known by its result, but a result entered the next day must not extend the window to a day: at most this many
# durations.
DURATIONS_MAX = 2
# Past windows matter for as long as a page built before them may still be read: the longest TTL and stale TTL.
LOOK_BACK_MS = (WEEK_SECONDS + STALE_SECONDS_OUTSIDE_MAX) * 1000
# The page of a match in play ends this long after the match (R4.17).
LIVE_KEPT_MS = 3 * 3_600_000
# A result may arrive long after the match; it counts for at most a day, so that a wrong time does not keep a page.
_RESULT_DELAY_MS_MAX = 86_400_000

_MINUTE_MS, _DAY_MS = 60_000, 86_400_000


class Timed(Protocol):
    """The fields of a match that a window needs; `streams.league.matches.Match` has them. Times in ms since 1970."""

    @property
    def season(self) -> str:
        """Return the season whose pages become hot."""

    @property
    def kickoff_ms(self) -> int:
        """Return when it begins; the middle of its day if only the day is known."""

    @property
    def status(self) -> Status:
        """Return the status in the schedule."""

    @property
    def is_final(self) -> bool:
        """Return whether it has a result."""

    @property
    def finalized_ms(self) -> int | None:
        """Return when it got its result, by the event."""


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """The length of a match's window (R4.10)."""

    lookahead_days: float = 7.0
    prewarm_minutes: float = 45.0
    grace_minutes: float = 30.0
    duration_minutes: float = 120.0

    @property
    def lookahead_ms(self) -> int:
        """Return how far ahead windows are listed."""
        return int(self.lookahead_days * _DAY_MS)

    @property
    def prewarm_ms(self) -> int:
        """Return the time from the start of the window to kickoff."""
        return int(self.prewarm_minutes * _MINUTE_MS)

    @property
    def grace_ms(self) -> int:
        """Return the time from the end of the match to the end of the window."""
        return int(self.grace_minutes * _MINUTE_MS)

    @property
    def duration_ms(self) -> int:
        """Return the assumed length of a match without a result."""
        return int(self.duration_minutes * _MINUTE_MS)


class Prewarm(NamedTuple):
    """A season whose pages are to be built now, and the start of the window that requires it."""

    season: str
    start_ms: int


def window_options(settings: Settings) -> WindowOptions:
    """Return the configured options."""
    return WindowOptions(
        lookahead_days=settings.match_lookahead_days,
        prewarm_minutes=settings.match_prewarm_minutes,
        grace_minutes=settings.match_grace_minutes,
        duration_minutes=settings.match_duration_minutes,
    )


def match_end_ms(match: Timed, options: WindowOptions) -> int:
    """Return when a match is over: with its result, at most `DURATIONS_MAX` durations after kickoff, else after its
    duration.

    A score in play makes no difference: a missing result must not keep a window open forever.
    """
    if match.is_final and match.finalized_ms is not None:
        return min(match.finalized_ms, match.kickoff_ms + DURATIONS_MAX * options.duration_ms)
    return match.kickoff_ms + options.duration_ms


def live_ends_ms(match: Timed, options: WindowOptions) -> int | None:
    """Return when the live page of a match ends (R4.17): three hours after its result, or after its expected end.

    None for one that is not played. A result entered before kickoff counts from kickoff: people open the page until
    then.
    """
    if match.is_final and match.finalized_ms is not None:
        told_ms = min(match.finalized_ms, match.kickoff_ms + _RESULT_DELAY_MS_MAX)
        return max(told_ms, match.kickoff_ms) + LIVE_KEPT_MS
    if match.status is not Status.SCHEDULED:
        return None
    return match.kickoff_ms + options.duration_ms + LIVE_KEPT_MS


def match_window(match: Timed, options: WindowOptions) -> tuple[int, int] | None:
    """Return prewarm, match and grace as one interval (R4.9); None without one.

    There is none for a postponed or cancelled match, nor for one whose result was known well before kickoff (it was
    awarded and nobody plays).
    """
    if match.status is not Status.SCHEDULED:
        return None
    start_ms = match.kickoff_ms - options.prewarm_ms
    end_ms = match_end_ms(match, options) + options.grace_ms
    return (start_ms, end_ms) if start_ms < end_ms else None


def kickoff_range(options: WindowOptions, now_ms: int) -> tuple[int, int]:
    """Return [from, until) of the kickoffs that can have a window in `season_windows`, for reading matches from a store."""
    reach_ms = DURATIONS_MAX * options.duration_ms + options.grace_ms
    return now_ms - LOOK_BACK_MS - reach_ms, now_ms + options.lookahead_ms + options.prewarm_ms


def season_windows(matches: Iterable[Timed], options: WindowOptions, now_ms: int) -> dict[str, list[list[int]]]:
    """Return windows by season, both in order, overlapping and adjoining ones merged (R4.10, R4.11).

    From those that ended after `now_ms - LOOK_BACK_MS` to those that begin before `now_ms` and the look-ahead. Seasons
    without a window are left out.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for match in matches:
        window = match_window(match, options)
        if window is None:
            continue
        start_ms, end_ms = window
        if end_ms > now_ms - LOOK_BACK_MS and start_ms < now_ms + options.lookahead_ms:
            found.setdefault(match.season, []).append(window)
    return {season: merge_windows(found[season]) for season in sorted(found)}


def merge_windows(windows: Iterable[Window]) -> list[list[int]]:
    """Return the same times as sorted intervals that do not touch."""
    merged: list[list[int]] = []
    for start_ms, end_ms in sorted((window[0], window[1]) for window in windows):
        if merged and start_ms <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end_ms)
        else:
            merged.append([start_ms, end_ms])
    return merged


def maybe_prewarm_public_league_caches(
    windows_by_season: Mapping[str, Iterable[Window]], prewarmed: Mapping[str, int], now_ms: int
) -> list[Prewarm]:
    """Return the seasons to prewarm now, one entry each in order (R4.12, R4.32).

    A season is due if it has an open window that began later than the last one it was prewarmed for. Past windows are
    ignored: an import of ten years of matches builds no pages.

    Args:
        windows_by_season: of each match, or merged.
        prewarmed: season -> start of the newest window it was prewarmed for.
        now_ms: the current time.
    """
    found: list[Prewarm] = []
    for season in sorted(windows_by_season):
        open_since = [start_ms for start_ms, end_ms in windows_by_season[season] if start_ms <= now_ms < end_ms]
        done_ms = prewarmed.get(season)
        if open_since and (done_ms is None or max(open_since) > done_ms):
            found.append(Prewarm(season, max(open_since)))
    return found
