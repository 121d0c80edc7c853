"""What a slice defines for the engine of pages: which pages exist, which are hot together, what a prewarm builds.

Invariant: the engine (`connectors/pages`, `api/pages`) knows pages only by these rules. A slice declares them once, and
one value of them applies to building, reading and refreshing its pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from highwater.schemas.league import RefreshRequested
from highwater.schemas.topic_names import TopicName
from highwater.streams.pages.kinds import Catalogue, Resource
from highwater.streams.pages.refresh import Refresh, refresh_decision
from highwater.streams.pages.windows import Window, Windows


@dataclass(frozen=True, slots=True)
class PageRules:
    """The rules of a slice's pages. A scope is what windows belong to, such as a season."""

    catalogue: Catalogue
    # The page with the windows of each scope: `{"windows": {scope: [[start, end], ...]}}`.
    window: Resource
    # Returns the scope of a page; None if it belongs to none, and is hot whenever any scope is.
    scope_of: Callable[[Resource], str | None]
    # The topic on which a subsystem requests the rebuild of pages.
    refresh_topic: TopicName[RefreshRequested]
    # Kinds that a prewarm of a scope builds, requested before or not.
    prewarmed: tuple[str, ...] = ()
    # Kinds that have a key and no builder.
    unmade: frozenset[str] = frozenset()

    def page_of(self, key: str) -> Resource | None:
        """Return the page that a key names; None if it names none."""
        return self.catalogue.page_of(key)

    def prewarmed_pages(self, scope: str) -> list[Resource]:
        """Return the pages that a prewarm of a scope builds."""
        return [self.catalogue.page(kind, scope) for kind in self.prewarmed]

    def can_be_made(self, key: str) -> bool:
        """Return whether a key names a page with a builder; PostgreSQL cannot store NUL."""
        found = self.page_of(key)
        return found is not None and found.kind.name not in self.unmade and "\x00" not in key

    def windows_of(self, page: Resource, windows: Windows) -> Sequence[Window]:
        """Return the windows of a page: those of its scope, or all if it has no scope."""
        scope = self.scope_of(page)
        if scope is not None:
            return windows.get(scope, ())
        return [window for spans in windows.values() for window in spans]

    def judge(self, page: Resource, built_ms: int, windows: Windows, now_ms: int) -> Refresh:
        """Decide the freshness of a page built at `built_ms` (ms since 1970), by the windows of all scopes as known now."""
        return refresh_decision(built_ms, page.kind, self.windows_of(page, windows), now_ms)
