"""The digest of a feed: what is new since a version, as JSON and for feed readers.

Invariant: the ETag consists of that of the clusters and of the version from which the digest begins, so a 304 reads no
cluster; a retraction or an erasure changes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from highwater.api.core import conditional
from highwater.api.core.access import Access, OwnedBy, Scope, declared
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.conditional import JSON, condition, is_match, not_modified
from highwater.api.core.freshness import FEEDS_TOPICS
from highwater.api.core.guard import GuardedRoute, User
from highwater.api.core.openapi import NOT_MODIFIED, text_of_type
from highwater.api.core.services import Services, Wired
from highwater.api.feeds.answers import Digest, JsonFeed
from highwater.api.feeds.routes_reads import Since, check_since
from highwater.api.feeds.syndication import ATOM, JSON_FEED, atom, json_feed
from highwater.connectors.feeds.digests import DigestHead, digest_head, read_digest
from highwater.streams.identity.rate_limits import RateLimit

router = APIRouter(tags=["feeds"], route_class=GuardedRoute)
# A digest reads up to a few thousand insights (`digests.INSIGHTS_READ` of each cluster), like a page of a list.
ACCESS = Access(Role.VIEWER, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.CALLER, cost=1)


@router.get(
    "/api/users/{user:id}/digest",
    summary="Get what is new in a user's feed; supports ETags",
    response_model=None,
    responses=answer(Digest) | NOT_MODIFIED,
)
@declared(ACCESS)
async def get_digest(request: Request, user: User, services: Wired, since: Since = None) -> Response:
    """What arrived after version `since`, by default after the version 24 hours earlier. The `cluster_version` of the answer is
    the `since` of the next one.
    """
    return await _digest(request, user, services, since, JSON, orjson.dumps)


@router.get(
    "/api/users/{user:id}/digest/atom",
    summary="Get the digest as an Atom feed; supports ETags",
    response_class=Response,
    responses=text_of_type(ATOM, "An entry for each cluster with news (RFC 4287).") | NOT_MODIFIED,
)
@declared(ACCESS)
async def get_digest_as_atom(request: Request, user: User, services: Wired, since: Since = None) -> Response:
    """The digest for feed readers, which show each entry once."""
    return await _digest(request, user, services, since, ATOM, _of_feed(request, atom))


@router.get(
    "/api/users/{user:id}/digest/json-feed",
    summary="Get the digest as a JSON Feed; supports ETags",
    response_class=Response,
    responses=answer(JsonFeed, media_type=JSON_FEED) | NOT_MODIFIED,
)
@declared(ACCESS)
async def get_digest_as_json_feed(request: Request, user: User, services: Wired, since: Since = None) -> Response:
    """The digest for feed readers, which show each item once."""
    return await _digest(request, user, services, since, JSON_FEED, _of_feed(request, json_feed))


def _of_feed(request: Request, form: Callable[[Any, str, str], bytes]) -> Callable[[Any], bytes]:
    return lambda document: form(document, str(request.base_url).rstrip("/"), str(request.url))


async def _digest(
    request: Request, user: str, services: Services, since: int | None, media_type: str, form: Callable[[Any], bytes]
) -> Response:
    await services.fresh(request, FEEDS_TOPICS)
    pool, now_ms = services.database.require(), services.clock()
    found = _of_type(await digest_head(pool, user, since, now_ms), media_type)
    if since is not None:
        check_since(since, found.cluster_version)
    if is_match(condition(request), found.head.etag):
        return not_modified("digest", found.head)
    found, document = await read_digest(pool, user, found.since, now_ms)
    head = _of_type(found, media_type).head
    return conditional.answer(request, "digest", head, form(document), media_type=media_type)


def _of_type(found: DigestHead, media_type: str) -> DigestHead:
    """Return the head of a digest of a media type: each has an ETag of its own."""
    if media_type == JSON:
        return found
    return replace(found, head=replace(found.head, etag=f"{found.head.etag}-{media_type.partition('/')[2]}"))
