"""Views of decks (R2.42, R2.43), and public links by which anybody reads one deck.

Invariants. A view is an event first; the displayed number may fall with Redis to the stored one, which loses nothing. A
link shows the slides of one deck and nothing that leads to anything else: no owner, no document, no notes. An unknown
link and a revoked one are answered alike.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Path, Request, Response

from highwater.api.core import conditional
from highwater.api.core.access import OwnedBy, Scope, access
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.errors import ConflictError, NotFoundError
from highwater.api.core.guard import Called, GuardedRoute
from highwater.api.core.heads import IS_HEAD
from highwater.api.core.openapi import problems
from highwater.api.core.publishing import Positions
from highwater.api.core.resources import DECK_OWNER
from highwater.api.core.services import Services, Wired
from highwater.api.core.uuids import canonical_uuid
from highwater.api.jobs.answers import NewPresentationLink, PresentationLinks, SharedPresentation
from highwater.api.jobs.services import JobServices, WiredJobs
from highwater.connectors.jobs import links
from highwater.connectors.jobs.links import Link
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import HighwaterError
from highwater.schemas.jobs import VIEW_RECORDED
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.telemetry import get_log

# A reader of a public link does not wait longer for the log: on a healthy broker an event takes some 5 ms. What is
# accepted later is counted with its window.
_COUNT_SECONDS_MAX = 1.0
_log = get_log("api")

router = APIRouter(tags=["jobs"], route_class=GuardedRoute)


async def _presentation_id(presentation: Annotated[str, Path(description="the id of the job that made it")]) -> str:
    return canonical_uuid("presentation_id", presentation)


async def _link_id(link: Annotated[str, Path(description="the id of a link, from the list of links")]) -> str:
    return canonical_uuid("link_id", link)


PresentationId = Annotated[str, Depends(_presentation_id)]
LinkId = Annotated[str, Depends(_link_id)]


@router.post(
    "/api/presentations/{presentation}/views", status_code=HTTPStatus.ACCEPTED, summary="Count a view of a presentation"
)
# Viewing is reading: a caller that may read a deck may count a view.
@access(Role.VIEWER, Scope.JOBS, OwnedBy.DECK, limit=RateLimit.PLAN, cost=1)
async def post_view(presentation: PresentationId, called: Called, services: Wired, jobs: WiredJobs) -> Positions:
    """The view is shown at once and stored within a minute."""
    deck = await called.found(DECK_OWNER, presentation)
    return Positions(positions=await _count_view(services, jobs, presentation, deck.view_count))


async def _count_view(services: Services, jobs: JobServices, presentation_id: str, stored: int) -> list[str]:
    is_shown = await jobs.views.add(presentation_id, stored)
    event = {"presentation_id": presentation_id, "ts": services.clock()}
    try:
        # Its sink gathers for a minute, and is not waited for.
        return await services.publisher.one(VIEW_RECORDED, event, sink_wait_ms=0)
    except BaseException:
        if is_shown:
            await jobs.views.cancel(presentation_id)
        raise


# -- public links ----------------------------------------------------------------------------------------------------


@router.post(
    "/api/presentations/{presentation}/links",
    status_code=HTTPStatus.CREATED,
    summary="Create a public link of a presentation",
    response_model=None,
    responses=answer(NewPresentationLink, status=HTTPStatus.CREATED) | problems(ConflictError),
)
@access(Role.EDITOR, Scope.JOBS, OwnedBy.DECK, limit=RateLimit.PLAN, cost=1)
async def post_link(presentation: PresentationId, request: Request, called: Called, services: Wired) -> Response:
    """Anybody who has the link reads the slides without a key, until it is revoked. It is shown only in this answer."""
    await called.found(DECK_OWNER, presentation)
    await services.security.permit(request.scope, called.principal)  # a link works like a key
    created = await links.create(services.database.require(), presentation, services.clock())
    if created is None:
        raise ConflictError(f"this presentation has {links.LINKS_MAX} links; revoke one first")
    token, link = created
    document = {**_link_document(link), "token": token, "url": f"/read/shared/{token}"}
    return conditional.uncached(document, status=HTTPStatus.CREATED)


@router.get(
    "/api/presentations/{presentation}/links",
    summary="List the public links of a presentation",
    response_model=None,
    responses=answer(PresentationLinks),
)
@access(Role.EDITOR, Scope.JOBS, OwnedBy.DECK, own=Role.VIEWER, limit=RateLimit.PLAN, cost=1)
async def get_links(presentation: PresentationId, called: Called, services: Wired) -> Response:
    """The links that work, the oldest first, without their tokens."""
    await called.found(DECK_OWNER, presentation)
    found = await links.links_of(services.database.require(), presentation)
    return conditional.uncached({"presentation_id": presentation, "links": [_link_document(link) for link in found]})


def _link_document(link: Link) -> dict[str, Any]:
    return {"link_id": link.link_id, "created_at": iso_from_ms(link.created_ms)}


@router.delete(
    "/api/presentations/{presentation}/links/{link}",
    status_code=HTTPStatus.NO_CONTENT,
    summary="Revoke a public link of a presentation",
)
@access(Role.EDITOR, Scope.JOBS, OwnedBy.DECK, own=Role.VIEWER, limit=RateLimit.PLAN, cost=1)
async def delete_link(presentation: PresentationId, link: LinkId, called: Called, services: Wired) -> None:
    """The link is 404 from now on."""
    await called.found(DECK_OWNER, presentation)
    if not await links.revoke(services.database.require(), presentation, link):
        raise NotFoundError(f"there is no link {link} of this presentation")


@router.get(
    "/api/shared/{token}",
    summary="Get the presentation of a public link",
    response_model=None,
    responses=answer(SharedPresentation) | problems(NotFoundError),
)
@access(None, limit=RateLimit.ADDRESS, cost=1)
async def get_shared(token: str, request: Request, services: Wired, jobs: WiredJobs) -> Response:
    """Counts a view. Needs no key; a link that is unknown or revoked is 404."""
    deck = await links.shared_deck(services.database.require(), token)
    if deck is None:
        raise NotFoundError("there is no such link, or it was revoked")
    if IS_HEAD not in request.scope:
        try:
            async with asyncio.timeout(_COUNT_SECONDS_MAX):
                await _count_view(services, jobs, deck.presentation_id, deck.view_count)
        except (HighwaterError, TimeoutError) as error:
            _log.warning("a view of a public link is not counted", presentation=deck.presentation_id, reason=str(error))
    document = {"title": deck.title, "slides": [_public_slide(slide) for slide in orjson.loads(deck.slides)]}
    return conditional.uncached(document, {"X-Robots-Tag": "noindex"})


def _public_slide(slide: dict[str, Any]) -> dict[str, Any]:
    """Return what a slide shows: no notes of its speaker, no names of documents."""
    shown = ("number", "title", "bullets", "table")
    return {name: slide[name] for name in shown if slide.get(name) is not None}
