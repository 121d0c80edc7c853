"""The kinds of pages: their TTL, access, and source topics (R4.6, R4.13).

A page is what one key names: bytes with a version, an ETag and the causing event. TTLs are in seconds, inside and
outside a window in which pages are hot; a stale TTL of None follows the rule of R4.13.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

DAY_SECONDS = 86_400
WEEK_SECONDS = 7 * DAY_SECONDS
# Default stale TTLs (R4.13): four TTLs inside a window, a tenth of a TTL and at most an hour outside.
STALE_LIVES_IN_WINDOW = 4
STALE_SHARE_OUTSIDE, STALE_SECONDS_OUTSIDE_MAX = 0.1, 3_600
LOCK_SECONDS = 10


class CacheOptions(NamedTuple):
    """How long a document is fresh, how long it is served while a newer one is built, and how long a build may take."""

    ttl_seconds: int
    stale_while_revalidate_seconds: int
    lock_timeout_seconds: int


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of document. `template` is the key with `{id}` for its subject; without it there is one document.

    `about` describes it; `of` is the word for its subject in errors. `form` grows when a release builds other bytes from
    the same facts: stored pages of an earlier form are rebuilt (`connectors/pages/forms.py`).
    """

    name: str
    template: str
    ttl_in_window_seconds: int
    ttl_outside_seconds: int
    topics: frozenset[str] = frozenset()
    stale_in_window_seconds: int | None = None
    stale_outside_seconds: int | None = None
    is_private: bool = False
    is_live: bool = False
    is_impersonal: bool = False  # it contains no user data: no erasure has to check it outside the product
    is_family: bool = (
        False  # its documents come from the same facts: a change that makes one stale makes all of them stale
    )
    is_absence_shown: bool = False  # readers are served a page without it, so one that returns has a version of its own
    about: str = ""
    of: str = "page"
    form: int = 0
    pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pattern = re.escape(self.template).replace(re.escape("{id}"), "(?P<id>.+)")
        object.__setattr__(self, "pattern", re.compile(pattern, re.DOTALL))

    @property
    def has_id(self) -> bool:
        """Return whether there are several documents of this kind."""
        return "{id}" in self.template


class Resource(NamedTuple):
    """One document: its kind and its subject (empty if there is only one)."""

    kind: Kind
    id: str = ""

    @property
    def key(self) -> str:
        """Return the key under which it is stored, versioned and cached."""
        return self.kind.template.replace("{id}", self.id)


class Catalogue:
    """The kinds of pages of a slice, and which page a key names."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.kinds: Mapping[str, Kind] = {kind.name: kind for kind in kinds}

    def page(self, kind: str, about: str = "") -> Resource:
        """Return the page of a kind and subject."""
        return Resource(self.kinds[kind], about)

    def page_of(self, key: str) -> Resource | None:
        """Return the page that a key names; None if it names none. No two templates of a catalogue match one key."""
        for kind in self.kinds.values():
            match = kind.pattern.fullmatch(key)
            if match is not None:
                return Resource(kind, match["id"] if kind.has_id else "")
        return None


def resolve_cache_options(kind: Kind, *, is_window_active: bool) -> CacheOptions:
    """Return the TTLs of a document of this kind now (R4.12 to R4.14)."""
    if is_window_active:
        ttl = kind.ttl_in_window_seconds
        stale = kind.stale_in_window_seconds
        return CacheOptions(ttl, STALE_LIVES_IN_WINDOW * ttl if stale is None else stale, LOCK_SECONDS)
    ttl = kind.ttl_outside_seconds
    stale = kind.stale_outside_seconds
    if stale is None:
        stale = min(int(ttl * STALE_SHARE_OUTSIDE), STALE_SECONDS_OUTSIDE_MAX)
    return CacheOptions(ttl, stale, LOCK_SECONDS)


def kept_seconds(kind: Kind) -> int:
    """Return how long after its build a document of this kind can be served at most: a cache need not hold it longer (R4.13)."""
    both = (resolve_cache_options(kind, is_window_active=active) for active in (False, True))
    return max(one.ttl_seconds + one.stale_while_revalidate_seconds for one in both)
