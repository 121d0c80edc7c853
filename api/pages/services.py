"""The services behind pages: the documents, and the pushes of new versions.

Invariant: this module knows no slice. The rules and builders of documents come from the slice, through `api/wiring.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from highwater.api.core.services import Services
from highwater.api.pages.pushes import Pushes
from highwater.connectors.pages.copies import Copies
from highwater.connectors.pages.leases import CopyLease
from highwater.connectors.pages.maker import Builder, DocumentMaker
from highwater.connectors.pages.reads import Documents
from highwater.connectors.pages.regeneration import RegenerationLocks
from highwater.connectors.redis.keys import DOCUMENT
from highwater.connectors.redis.objects import open_objects
from highwater.connectors.redis.resource_cache import ResourceCache
from highwater.streams.clock import fresh_id
from highwater.streams.pages.rules import PageRules


@dataclass(frozen=True)
class PageServices:
    """What serving a page needs; includes `core`, which checks who may see a page and how fresh it must be."""

    core: Services
    documents: Documents
    pushes: Pushes

    def start(self) -> None:
        """Start caching copies."""
        self.documents.start()

    async def end(self) -> None:
        """Close every socket, which has no end of its own."""
        await self.pushes.end()

    async def close(self) -> None:
        """Close the documents."""
        await self.pushes.close()
        await self.documents.close()


def make_pages(core: Services, rules: PageRules, builders: Mapping[str, Builder]) -> PageServices:
    """Wire the documents that a slice defines, with one builder per kind."""
    cache = ResourceCache(core.cache_link, DOCUMENT, open_objects(core.settings))
    copies = Copies()
    documents = Documents(
        DocumentMaker(rules, builders, core.registry.require, cache, core.clock),
        pool=core.database.require,
        cache=cache,
        copies=copies,
        lease=CopyLease(core.settings.database, copies, fresh_id()),
        locks=RegenerationLocks(core.cache_link),
        clock=core.clock,
    )
    pushes = Pushes(core.changes, core.registry.require, lambda key: documents.page_of(key) is not None)
    return PageServices(core, documents, pushes)


async def pages_of(request: Request) -> PageServices:
    """Return the services of the application that a request came to."""
    pages: PageServices = request.app.state.pages
    return pages


WiredPages = Annotated[PageServices, Depends(pages_of)]
