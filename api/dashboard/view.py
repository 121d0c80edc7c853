"""The base of every page: the visitor, the reads, the frame, and the messages about unavailable services.

Invariants. A page reads `/api` with the visitor's key, inside this process, so it shows only what the API permits; data
outside the API (topics, groups) is for visitors that are bound to no user. An unavailable service is a line on the
page, and the page continues by itself when the service recovers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

import httpx2
from nicegui import events, ui
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from highwater.api.core.access import Access, Scope, in_scope, refusal
from highwater.api.core.auth import Principal, Role
from highwater.api.core.errors import ForbiddenError, TooManyRequestsError, UnauthorizedError, problem_of
from highwater.api.core.guard import admit
from highwater.api.core.proxies import address_of
from highwater.api.core.services import Services
from highwater.api.dashboard.hub import Hub
from highwater.api.dashboard.look import CSS
from highwater.api.dashboard.mount import ACCESS, SCOPE_KEY, Dashboard
from highwater.api.dashboard.sign_in import Visitor
from highwater.connectors.pages.reads import Documents
from highwater.schemas.errors import HighwaterError
from highwater.streams.clock import monotonic_seconds
from highwater.streams.feeds.policy import Policy

THEME_COOKIE = "highwater_theme"
_THEMES = {"dark": True, "light": False}
# The time limit of an API read; the slowest waits for an unavailable service.
READ_SECONDS_MAX = 15.0
CHECK_SECONDS = 60.0

# path, name, icon; a digit opens each of the first ten.
NAVIGATION = (
    ("/", "Overview", "hub"),
    ("/topics", "Topics", "list"),
    ("/browse", "Browse", "manage_search"),
    ("/user", "Users", "person"),
    ("/league", "Leagues", "sports_soccer"),
    ("/queries", "Queries", "question_answer"),
    ("/jobs", "Jobs", "work_history"),
    ("/chunks", "Chunks", "article"),
    ("/dead-letters", "Dead letters", "mark_email_unread"),
    ("/policies", "Policies", "tune"),
    ("/sql", "SQL", "table_chart"),
    ("/groups", "Groups", "groups"),
    ("/schemas", "Schemas", "schema"),
)

_DIGITS = 10

Build = Callable[["View"], Awaitable[None]]


# Not found, or a malformed name.
_NOT_FOUND = (404, 422)


class ReadRefusedError(HighwaterError):
    """The API refused the request. The page shows the reason."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass
class View:
    """One page in one browser."""

    dashboard: Dashboard
    visitor: Visitor
    request: Request
    _banner: ui.html | None = field(default=None, init=False)
    _checked_at: float = field(default_factory=monotonic_seconds, init=False)

    @property
    def services(self) -> Services:
        """Return the services of the routes."""
        return self.dashboard.services.core

    @property
    def policy(self) -> Policy:
        """Return the policy of rebuilds."""
        return self.dashboard.services.policy

    @property
    def documents(self) -> Documents:
        """Return the league pages, as they are served."""
        return self.dashboard.services.documents

    @property
    def hub(self) -> Hub:
        """Return the sampler for all browsers."""
        return self.dashboard.hub

    @property
    def sees_all(self) -> bool:
        """Return whether topics and groups, which contain everyone's events, may be shown: to operators."""
        principal = self.visitor.principal
        is_operator = principal.role is Role.ADMIN or not principal.is_bound
        return is_operator and in_scope(Scope.SYSTEM, principal)

    @property
    def only_user(self) -> str | None:
        """Return the only user whose rows are listed; None: everyone's. A key of an organization belongs to no user, so
        it sees none.
        """
        principal = self.visitor.principal
        if principal.role is Role.ADMIN or not principal.is_bound:
            return None
        return principal.user_id or ""

    @property
    def is_admin(self) -> bool:
        """Return whether the visitor may change what operators change."""
        return self.visitor.principal.role is Role.ADMIN

    def may(self, declaration: Access) -> bool:
        """Return whether to offer an operation: role and scopes allow it. The API checks the owner when it is called."""
        return refusal(declaration, self.visitor.principal) is None

    async def require(self, role: Role) -> Principal:
        """Return the visitor, checked again before an action: a key may have lost its role, or its browser signed out,
        since the page was sent.

        Raises:
            ForbiddenError: the role is too low, or the scopes do not include it.
            UnauthorizedError: the visitor is no longer signed in.
        """
        found = await self.dashboard.sign_in.visitor(self.request)
        if found is None:
            raise UnauthorizedError("this browser has signed out, or its key is no longer valid")
        admit(Access(role, Scope.SYSTEM), found.principal)
        return found.principal

    async def count(self, declaration: Access) -> None:
        """Count an action of this page outside `/api`, as a call of such an operation.

        Raises:
            TooManyRequestsError: the limit is reached.
        """
        await self.services.rate_limiter.admit(declaration, self.visitor.principal, self.request.scope)

    def asked(self, name: str, default: str = "") -> str:
        """Return a parameter of the page."""
        return self.request.query_params.get(name, default)

    def named(self, name: str) -> str:
        """Return a part of the page's address, as in `/jobs/{job_id}`."""
        return str(self.request.path_params[name])

    async def get(self, path: str, **parameters: Any) -> Any:
        """Return the API's response to this visitor; `path` is encoded already (`segment`).

        Raises:
            ReadRefusedError: it refuses, or the resource does not exist.
        """
        return (await self.send("GET", path, parameters=parameters)).json()

    async def find(self, path: str, **parameters: Any) -> Any:
        """Return the same as `get`; None if the resource does not exist, or its name is malformed.

        Raises:
            ReadRefusedError: it refuses.
        """
        try:
            return await self.get(path, **parameters)
        except ReadRefusedError as error:
            if error.status not in _NOT_FOUND:
                raise
            return None

    async def send(
        self, method: str, path: str, *, parameters: Mapping[str, Any] | None = None, body: Any = None
    ) -> httpx2.Response:
        """Send one request to the API as this visitor.

        Raises:
            ReadRefusedError: the response was not a 2xx.
        """
        headers = {} if self.visitor.authorization is None else {"Authorization": self.visitor.authorization}
        transport = httpx2.ASGITransport(self.dashboard.api, client=(address_of(self.request.scope), 0))
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers, timeout=READ_SECONDS_MAX
        ) as client:
            wanted = {name: value for name, value in (parameters or {}).items() if value is not None}
            answer = await client.request(method, path, params=wanted or None, json=body)
        if not answer.is_success:
            raise ReadRefusedError(answer.status_code, _detail(answer))
        return answer

    def live(self, seconds: float, refresh: Callable[[], Awaitable[None]], *, ahead: bool = True) -> None:
        """Call `refresh` as soon as the browser is connected, and then periodically; a failure is shown above the page.

        Until the first call has ended the page is marked as busy: screen readers wait, and so do tests. `ahead`: the first
        call is made while the browser loads the scripts of the page, which takes half a second or more; not where later
        is better, because something begins only now.
        """
        of_page = ui.context.client.content
        content = of_page.props("aria-busy=true")

        async def turn() -> None:
            try:
                if not await self._is_still_let_in():
                    return
                await refresh()
            except HighwaterError as error:
                self.tell(str(error))
            except Exception:
                self.tell(
                    "This page could not be refreshed because of a defect; see the log of the API. Reload to try again."
                )
                raise
            else:
                self.tell(None)
            finally:
                if "aria-busy" in content.props:
                    content.props(remove="aria-busy")

        async def first_turn() -> None:
            with of_page:  # another task has no place on the page
                await turn()

        first = [asyncio.create_task(first_turn(), name="dashboard-first-refresh")] if ahead else []

        async def next_turn() -> None:
            self.hub.look()
            await (first.pop() if first else turn())

        ui.timer(seconds, next_turn)

    async def _is_still_let_in(self) -> bool:
        """Check the visitor once a minute: one who signed out or lost a role no longer sees forbidden data.

        Raises:
            UnavailableError: that cannot be checked now; nothing is shown meanwhile.
        """
        now = monotonic_seconds()
        if now - self._checked_at < CHECK_SECONDS:
            return True
        visitor = await self.dashboard.sign_in.visitor(self.request)
        self._checked_at = now
        if visitor == self.visitor:
            return True
        ui.navigate.reload()
        return False

    def tell(self, problem: str | None) -> None:
        """Show an error above the page; None: there is none."""
        if self._banner is None:
            return
        self._banner.set_visibility(problem is not None)
        if problem is not None:
            set_html(self._banner, f'<div class="hw-banner" role="status">{text(problem)}</div>')

    @contextmanager
    def frame(self, path: str, title: str) -> Iterator[None]:
        """Yield the page within header and navigation."""
        # Not `ui.add_css`, which adds a style by a script without the page's nonce.
        ui.add_head_html(f"<style>{CSS}</style>")
        ui.dark_mode(_THEMES.get(self.request.cookies.get(THEME_COOKIE, "")))
        drawer = self._drawer(path)
        self._header(drawer)
        ui.keyboard(on_key=_open_by_digit, repeating=False)
        ui.html(f'<h1 class="hw" id="page" tabindex="-1">{text(title)}</h1>', sanitize=False)
        self._banner = ui.html("", sanitize=False).classes("full-width")
        self._banner.set_visibility(visible=False)
        yield

    def _drawer(self, path: str) -> ui.left_drawer:
        links = "".join(
            f'<a href="{target}"{_current(target, path)}>'
            f'<i class="q-icon notranslate material-icons" aria-hidden="true" style="font-size:1.2rem">{icon}</i>{name}'
            f"{f'<kbd>{(number + 1) % 10}</kbd>' if number < _DIGITS else ''}</a>"
            for number, (target, name, icon) in enumerate(NAVIGATION)
        )
        drawer = ui.left_drawer(value=False, bottom_corner=True).props("show-if-above width=232 breakpoint=900")
        with drawer:
            ui.html(f'<nav class="hw-nav" aria-label="Pages">{links}</nav>', sanitize=False).classes("full-width")
        return drawer

    def _header(self, drawer: ui.left_drawer) -> None:
        with ui.header():
            # The first target of Tab: the header is before everything else in the document.
            ui.html('<a class="hw-skip" href="#page">Skip to the page</a>', sanitize=False)
            ui.button(icon="menu", on_click=drawer.toggle).props('flat round dense color=inherit aria-label="Pages"')
            ui.html('<a class="hw-brand" href="/">Highwater</a>', sanitize=False)
            ui.space()
            role = self.visitor.principal.role.label
            owner = f" of {self.visitor.principal.user_id}" if self.visitor.principal.user_id else ""
            ui.html(f'<span class="hw-muted hw-small">{role}{text(owner)}</span>', sanitize=False)
            ui.button(icon="contrast", on_click=self._next_theme).props(
                'flat round dense color=inherit aria-label="Light, dark, or as the system has it"'
            )
            if self.visitor.authorization is not None:
                ui.button(icon="logout", on_click=lambda: ui.navigate.to("/logout")).props(
                    'flat round dense color=inherit aria-label="Sign out"'
                )

    def _next_theme(self) -> None:
        order = ("auto", "dark", "light")
        now = self.request.cookies.get(THEME_COOKIE, "auto")
        chosen = order[(order.index(now) + 1) % len(order)] if now in order else "dark"
        ui.run_javascript(
            f"document.cookie='{THEME_COOKIE}={chosen};path=/;max-age=31536000;samesite=strict';location.reload()"
        )


def _current(target: str, path: str) -> str:
    """Return the mark of a navigation link: on its page, and on the pages of single things under it."""
    if target == path:
        return " aria-current=page"
    return " aria-current=true" if target != "/" and path.startswith(f"{target}/") else ""


def page(path: str, title: str) -> Callable[[Build], None]:
    """Register a page: signed-in visitors see it, others have to sign in first."""

    def register(build: Build) -> None:
        async def shown(request: Request) -> Response | None:
            dashboard: Dashboard = request.scope[SCOPE_KEY]
            visitor = await dashboard.sign_in.visitor(request)
            if visitor is None:
                here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(f"/login?next={quote(here, safe='')}", 303)
            try:
                admit(ACCESS[path], visitor.principal)
                view = View(dashboard, visitor, request)
                await view.count(ACCESS[path])
            except (ForbiddenError, TooManyRequestsError) as error:
                return problem_of(error)
            view.hub.look()
            with view.frame(path, title):
                await build(view)
            return None

        ui.page(path, title=f"{title} · Highwater", dark=None)(shown)

    return register


def place(content: str = "") -> ui.html:
    """Return a container for HTML as wide as the page; `set_html` changes its content."""
    return ui.html(content, sanitize=False).classes("full-width")


def set_html(element: ui.html, content: str) -> None:
    """Change a picture only if it differs: an unchanged one is not sent again."""
    if element.content != content:
        element.set_content(content)


def heading(words: str) -> None:
    """Add a heading within a page."""
    ui.html(f'<h2 class="hw">{text(words)}</h2>', sanitize=False)


def note(words: str) -> None:
    """Add a line of explanation."""
    ui.html(f'<p class="hw-muted hw-small" style="margin:0">{text(words)}</p>', sanitize=False)


def chip(words: str, tone: str = "hw-muted") -> str:
    """Return a state as HTML: words, and a colour beside them."""
    return f'<span class="hw-chip {tone}">{text(words)}</span>'


def facts(pairs: Mapping[str, str]) -> str:
    """Return names and values as HTML; values are HTML already."""
    return '<dl class="hw-facts">' + "".join(f"<dt>{text(k)}</dt><dd>{v}</dd>" for k, v in pairs.items()) + "</dl>"


def text(value: object) -> str:
    """Return anything as HTML text."""
    return escape(str(value))


def segment(value: str) -> str:
    """Return one segment of a path of the API."""
    return quote(value, safe="")


def link(path: str, **parameters: str) -> str:
    """Return the address of a page."""
    return f"{path}?{urlencode(parameters)}" if parameters else path


def _detail(answer: httpx2.Response) -> str:
    try:
        found = answer.json()
    except ValueError:
        return f"the API answers {answer.status_code}"
    return str(found.get("detail") or found.get("title") or f"the API answers {answer.status_code}")


def _open_by_digit(event: events.KeyEventArguments) -> None:
    is_plain = not (event.modifiers.ctrl or event.modifiers.alt or event.modifiers.meta or event.modifiers.shift)
    digit = event.key.number
    if event.action.keydown and is_plain and digit is not None:
        ui.navigate.to(NAVIGATION[(digit - 1) % _DIGITS][0])
