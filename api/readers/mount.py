"""The addresses of readers' pages: which are served, who may see them, and the responses to other callers.

Invariants. A reader loads nothing of the dashboard. If a page requires a key, an unknown caller is asked to sign in,
and is then sent back. A page is refused by the declaration beside its address; its contents and its forms are
authorized by the API itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from highwater.api.core.access import PUBLIC, Access
from highwater.api.core.access import Scope as Subsystem
from highwater.api.core.auth import OPEN, Role
from highwater.api.core.errors import UnauthorizedError, problem, problem_of
from highwater.api.core.guard import admit
from highwater.api.dashboard.sign_in import SignIn, Visitor
from highwater.api.readers import feed, files, league, pushes, shared
from highwater.api.readers.frame import problem_note, text
from highwater.api.readers.inside import Answer, Visit
from highwater.api.readers.pages import page
from highwater.schemas.errors import HighwaterError
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.languages import ENGLISH

if TYPE_CHECKING:
    import re

    from starlette.convertors import Convertor

Handler = Callable[[Visit], Awaitable[Response]]

_LEAGUE, _FEEDS, _QUERIES, _JOBS = (
    Access(Role.VIEWER, subsystem, limit=RateLimit.NONE, cost=0)
    for subsystem in (Subsystem.LEAGUE, Subsystem.FEEDS, Subsystem.QUERIES, Subsystem.JOBS)
)
# A league's pages; forms always need a key.
_LEAGUE_PAGE = replace(_LEAGUE, may_be_public=True)


async def _static(visit: Visit) -> Response:
    return files.serve(visit.request, visit.named["file"])


# Path, handler, whether it accepts a form instead of a read, and its access. The API authorizes what a page reads.
_PAGES: tuple[tuple[str, Handler, bool, Access], ...] = (
    ("/read", league.seasons, False, _LEAGUE_PAGE),
    ("/read/league/{season:id}", league.season, False, _LEAGUE_PAGE),
    ("/read/league/{season:id}/{tab}", league.season, False, _LEAGUE_PAGE),
    ("/read/matches/{match:id}", league.match, False, _LEAGUE_PAGE),
    ("/read/matches/{match:id}/votes", league.vote, True, _LEAGUE),
    ("/read/matches/{match:id}/predictions", league.prediction, True, _LEAGUE),
    ("/read/matches/{match:id}/comments", league.comment, True, _LEAGUE),
    ("/read/feed", feed.feed, False, _FEEDS),
    ("/read/feed/questions", feed.ask, True, _QUERIES),
    ("/read/feed/deck", feed.deck_form, False, _JOBS),
    ("/read/feed/decks", feed.make_deck, True, _JOBS),
    ("/read/questions/{question}", feed.question, False, _QUERIES),
    ("/read/jobs/{job}", feed.job, False, _JOBS),
    ("/read/decks/{deck}", feed.deck, False, _JOBS),
    ("/read/decks/{deck}/links", shared.make_link, True, _JOBS),
    ("/read/decks/{deck}/revoke", shared.revoke_link, True, _JOBS),
    ("/read/shared/{token}", shared.shared, False, PUBLIC),
    ("/read/static/{file}", _static, False, PUBLIC),
)


@dataclass(frozen=True)
class ReadersPage:
    """An address."""

    path_format: str
    pattern: re.Pattern[str]
    convertors: Mapping[str, Convertor[Any]]
    handler: Handler
    is_form: bool
    access: Access

    @property
    def method(self) -> str:
        """Return its only method; HEAD arrives as GET (`core/heads.py`)."""
        return "POST" if self.is_form else "GET"

    def named(self, path: str) -> dict[str, str] | None:
        """Return the parameters of a path; None for another path."""
        found = self.pattern.match(path)
        if found is None:
            return None
        return {name: self.convertors[name].convert(value) for name, value in found.groupdict().items()}


def _compiled(path: str, handler: Handler, is_form: bool, access: Access) -> ReadersPage:
    pattern, path_format, convertors = compile_path(path)
    return ReadersPage(path_format, pattern, convertors, handler, is_form, access)


PAGES = tuple(_compiled(*one) for one in _PAGES)
_VISIT_KEY = "highwater.readers_page"


class Readers:
    """An ASGI application for the pages."""

    def __init__(self, application: ASGIApp, sign_in: SignIn) -> None:
        self._application = application
        self._sign_in = sign_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve a socket."""
        if scope["type"] == "websocket":
            await pushes.serve(WebSocket(scope, receive, send), self._sign_in)
            return
        found: ReadersPage = scope[_VISIT_KEY]
        request = Request(scope, receive)
        if request.method != found.method:
            answer = problem(405, f"this address takes {found.method}", headers={"Allow": found.method})
        else:
            answer = await self._answer(request, found, found.named(scope["path"]) or {})
        await answer(scope, receive, send)

    async def _answer(self, request: Request, found: ReadersPage, named: Mapping[str, str]) -> Response:
        visitor: Visitor | None = Visitor(OPEN, None)
        is_part = "part" in request.query_params
        try:
            if found.access.role is not None:
                visitor = await self._sign_in.visitor(request, may_be_public=found.access.may_be_public)
                if visitor is None:
                    return problem_of(UnauthorizedError("sign in first")) if is_part else _sign_in(request, found)
                admit(found.access, visitor.principal)
            assert visitor is not None
            return await found.handler(Visit(self._application, request, visitor, named))
        except HighwaterError as error:
            answer = problem_of(error)
            if is_part or found.access is PUBLIC:
                return answer
            visit = Visit(self._application, request, visitor or Visitor(OPEN, None), named)
            told = Answer(answer.status_code, answer.headers, bytes(answer.body))
            title = visit.messages.gettext("Error")
            heading = f'<h1><span lang="{ENGLISH}">{text(told.document.get("title", "Error"))}</span></h1>'
            return page(visit, title, f"{heading}{problem_note(told.detail)}", status=told.status)


def _sign_in(request: Request, found: ReadersPage) -> Response:
    """Redirect to the sign-in form, and from there back; after a form, to the page that contains it."""
    path = request.url.path.rpartition("/")[0] if found.is_form else request.url.path
    query = f"?{request.url.query}" if request.url.query and not found.is_form else ""
    return RedirectResponse(f"/login?next={quote(path + query, safe='')}", 303)


class ReadersRoute(BaseRoute):
    """The addresses of the pages and of their socket; every other one is left to the API."""

    access: Mapping[str, Access] = {**{one.path_format: one.access for one in PAGES}, pushes.PATH: pushes.PUSHES}

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether a path is a page, or the socket."""
        if scope["type"] == "websocket" and scope["path"] == pushes.PATH:
            return Match.FULL, {"endpoint": pushes.serve}
        if scope["type"] == "http" and scope["path"].startswith("/read"):
            for one in PAGES:
                if one.pattern.match(scope["path"]):
                    return Match.FULL, {"endpoint": self._readers, _VISIT_KEY: one, "route": one}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the pages, or serve the socket."""
        await self._readers(scope, receive, send)
