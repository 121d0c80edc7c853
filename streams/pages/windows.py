"""Windows in which pages are hot, and until when a page is fresh because of them (R4.12 to R4.14).

Invariant: a page is fresh as long as at no time since its build its age had reached the TTL of that time: so a TTL of a
week ends when a window begins, and a stale page never becomes fresh again. Windows are half-open, [start, end), in
milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from highwater.streams.pages.kinds import CacheOptions

# [start, end): a pair, or a list of two from JSON.
Window = Sequence[int]
# By scope: what becomes hot together.
Windows: TypeAlias = Mapping[str, Sequence[Window]]


def is_match_window_active(windows: Iterable[Window], now_ms: int) -> bool:
    """Return whether any window contains `now_ms` (R4.12)."""
    return any(start_ms <= now_ms < end_ms for start_ms, end_ms in windows)


def next_window_start(windows: Iterable[Window], now_ms: int) -> int | None:
    """Return the start of the next window that begins after `now_ms`; None if none is known."""
    return min((start_ms for start_ms, _ in windows if start_ms > now_ms), default=None)


def first_active_ms(windows: Iterable[Window], at_ms: int) -> int | None:
    """Return the first time at or after `at_ms` that lies in a window; None if there is none."""
    return min((max(start_ms, at_ms) for start_ms, end_ms in windows if at_ms < end_ms), default=None)


def expires_at_ms(built_ms: int, inside: CacheOptions, outside: CacheOptions, windows: Iterable[Window]) -> int:
    """Return when a page built at `built_ms` stops being fresh, by the windows as known now (R4.14).

    The first time at which its age has reached the TTL of that time: the TTL outside a window ends it anywhere, that
    inside ends it in a window. A page with a TTL of a week thus becomes stale as soon as a window has begun and the TTL
    inside has passed since its build. Windows that become known later count, so each read calls this.

    Args:
        built_ms: when the page was built.
        inside: TTLs inside a window; no longer than those outside.
        outside: TTLs outside.
        windows: of the page's scope, back to `built_ms`.
    """
    lived_outside_ms = built_ms + outside.ttl_seconds * 1000
    lived_inside_ms = first_active_ms(windows, built_ms + inside.ttl_seconds * 1000)
    return lived_outside_ms if lived_inside_ms is None else min(lived_outside_ms, lived_inside_ms)


def stale_until_ms(expires_ms: int, inside: CacheOptions, outside: CacheOptions, windows: Iterable[Window]) -> int:
    """Return until when a page that expired at `expires_ms` is served while a newer one is built (R4.13, R4.27).

    The stale TTL is that of the time at which it expired; if a window begins meanwhile, the rest is at most the stale
    TTL inside.
    """
    inside_ms, outside_ms = (o.stale_while_revalidate_seconds * 1000 for o in (inside, outside))
    active_ms = first_active_ms(windows, expires_ms)
    if active_ms is None:
        return expires_ms + outside_ms
    if active_ms == expires_ms:
        return expires_ms + inside_ms
    return min(expires_ms + outside_ms, active_ms + inside_ms)
