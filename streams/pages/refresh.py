"""How fresh a document is: whether it is served, and whether a newer one is to be made (R4.14, R4.27).

The invariant: with the same windows, time only makes a document older: FRESH, then STALE, then COLD, never back. It is FRESH
for at most its TTL outside a window, and from the start of a window for at most its TTL inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from highwater.streams.pages.kinds import CacheOptions, Kind, resolve_cache_options
from highwater.streams.pages.windows import Window, expires_at_ms, is_match_window_active, stale_until_ms

# Clocks of two machines differ a little: a document made so far ahead of now counts as made now. Well below the shortest life
# (4 s); anything beyond means that a clock was moved.
CLOCK_SKEW_MS_MAX = 1_000


class Freshness(StrEnum):
    """What a reader gets."""

    FRESH = "fresh"  # served
    STALE = "stale"  # served while a newer one is made
    KEPT = "kept"  # served though making a newer one failed; said by who makes them, never decided here
    COLD = "cold"  # not served: there is none, or it is too old


class Refresh(NamedTuple):
    """The decision, the times it was made from (ms since 1970), and the lives that hold now."""

    freshness: Freshness
    expires_ms: int
    stale_until_ms: int
    options: CacheOptions


def refresh_decision(built_ms: int, kind: Kind, windows: Sequence[Window], now_ms: int) -> Refresh:
    """How fresh a document is at `now_ms`.

    Args:
        built_ms: when it was made.
        kind: its kind.
        windows: of its scope, or of all scopes where it belongs to none; as known now, back to the longest life and stale life.
        now_ms: now.

    A document made in the future (a clock was moved back) is STALE until it is rebuilt: its age says nothing, and counting
    from its time could keep it for ever.
    """
    inside = resolve_cache_options(kind, is_window_active=True)
    outside = resolve_cache_options(kind, is_window_active=False)
    options = inside if is_match_window_active(windows, now_ms) else outside
    if built_ms > now_ms + CLOCK_SKEW_MS_MAX:
        until_ms = now_ms + options.stale_while_revalidate_seconds * 1000
        return Refresh(Freshness.STALE, now_ms, until_ms, options)
    expires_ms = expires_at_ms(built_ms, inside, outside, windows)
    until_ms = stale_until_ms(expires_ms, inside, outside, windows)
    if now_ms < expires_ms:
        return Refresh(Freshness.FRESH, expires_ms, until_ms, options)
    return Refresh(Freshness.STALE if now_ms < until_ms else Freshness.COLD, expires_ms, until_ms, options)
