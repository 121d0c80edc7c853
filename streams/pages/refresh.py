"""The freshness of a document: whether it is served, and whether a newer one is to be built (R4.14, R4.27).

Invariant: with the same windows a document only becomes older: FRESH, then STALE, then COLD, never back. It is FRESH
for at most its TTL outside a window, and from the start of a window for at most its TTL inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from highwater.streams.pages.kinds import CacheOptions, Kind, resolve_cache_options
from highwater.streams.pages.windows import Window, expires_at_ms, is_match_window_active, stale_until_ms

# Clocks of two machines differ slightly: a document built this far ahead of now counts as built now. Well below the
# shortest TTL (4 s); more means that a clock was moved.
CLOCK_SKEW_MS_MAX = 1_000


class Freshness(StrEnum):
    """What a reader gets."""

    FRESH = "fresh"  # served
    STALE = "stale"  # served while a newer one is built
    KEPT = "kept"  # served although building a newer one failed; set by the builder, never decided here
    COLD = "cold"  # not served: there is none, or it is too old


class Refresh(NamedTuple):
    """The decision, its input times (ms since 1970), and the current TTLs."""

    freshness: Freshness
    expires_ms: int
    stale_until_ms: int
    options: CacheOptions


def refresh_decision(built_ms: int, kind: Kind, windows: Sequence[Window], now_ms: int) -> Refresh:
    """Decide the freshness of a document at `now_ms`.

    Args:
        built_ms: when it was built.
        kind: its kind.
        windows: of its scope, or of all scopes if it belongs to none; as known now, back to the longest TTL and stale
            TTL.
        now_ms: the current time.

    A document built in the future (a clock was moved back) is STALE until it is rebuilt: its age is meaningless, and
    counting from its time could keep it forever.
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
