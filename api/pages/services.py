"""The services behind pages: the documents.

Invariant: this module knows no slice. The rules and builders of documents come from the slice, through `api/wiring.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from highwater.api.core.services import Services
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

    def start(self) -> None:
        """Start caching copies."""
        self.documents.start()

    async def close(self) -> None:
        """Close the documents."""
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
    return PageServices(core, documents)


async def pages_of(request: Request) -> PageServices:
    """Return the services of the application that a request came to."""
    pages: PageServices = request.app.state.pages
    return pages


WiredPages = Annotated[PageServices, Depends(pages_of)]
