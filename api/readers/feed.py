"""Answers requests for a reader's feed, and accepts the questions and decks that a reader requests on it.

Invariants. A visit ends half an hour after its last page. New means newer than the version at the end of the previous
visit. Both are in cookies of the feed's pages only, so this works without a script too. A form that is sent twice is
one action.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from highwater.api.core.errors import NotFoundError, UnprocessableError
from highwater.api.jobs import routes as jobs
from highwater.api.jobs import routes_blobs as blobs
from highwater.api.queries import routes as queries
from highwater.api.readers import feed_pages, making_pages, shared
from highwater.api.readers.feed_pages import Subject, feed_address
from highwater.api.readers.frame import note, refusal, segment, text
from highwater.api.readers.inside import Visit
from highwater.api.readers.pages import COOKIE_SECONDS, form, number, page, positions_seen
from highwater.api.readers.parts import Part, serve_part, show
from highwater.streams.checks import is_uuid
from highwater.streams.languages import ENGLISH
from highwater.streams.messages import Messages

_PATH = "/read/feed"
_DIGEST = "digest"
# A reader of a feed opens another page of it, or returns to it, within this time; later it is another visit.
VISIT_SECONDS = 1_800
_SEE_OTHER = 303
_VERSION_DIGITS_MAX = 18


# -- the feed
# ---------------------------------------------------------------------------------------------------------------


def _named(visit: Visit) -> str | None:
    """Return the user as addresses of this reader name it; None: the reader's key does."""
    return None if visit.is_bound else visit.user


def _has_payer(visit: Visit) -> bool:
    """Return whether results for this reader have a payer: an organization, or the operator for one that the form names."""
    principal = visit.visitor.principal
    return principal.organization_id is not None or visit.is_operator


def _may_ask(visit: Visit) -> bool:
    return visit.may(queries.post_query) and _has_payer(visit)


def _may_make_decks(visit: Visit) -> bool:
    return visit.may(jobs.post_job) and visit.may(blobs.put_blob) and _has_payer(visit)


def _has_organization(visit: Visit) -> bool:
    return visit.visitor.principal.organization_id is not None


async def feed(visit: Visit) -> Response:
    """Show what is new since the last visit, then all clusters by theme with the new parts marked."""
    user = visit.user
    if user is None:
        title, asked = visit.messages.gettext("Feed"), note(visit.messages.gettext("Whose feed do you want to read?"))
        return page(visit, title, f"<h1>{title}</h1>{asked}{feed_pages.who(visit.messages)}")
    deck = feed_address(_named(visit), path=f"{_PATH}/deck") if _may_make_decks(visit) else None
    last = _last_version(visit.request, user)

    def shown_feed(document: Mapping[str, Any], messages: Messages) -> str:
        return feed_pages.feed(document, messages, since=_baseline(document, last), deck=deck)

    def shown_part(document: Mapping[str, Any], messages: Messages) -> str:
        return feed_pages.feed(document, messages, deck=deck)

    address, source = feed_address(_named(visit), part="1"), _source(user)
    keys = (f"feed:{user}", f"clusters:{user}")
    part = visit.request.query_params.get("part")
    if part == _DIGEST:
        return await serve_part(visit, _digest_part(visit, user, visit.request.query_params.get("since", ""), deck))
    if part is not None:
        return await serve_part(visit, Part(address, source, shown_part, keys))
    shown, pending = await asyncio.gather(
        show(visit, Part(address, source, shown_feed, keys)),
        visit.ask("GET", f"/api/users/{segment(user)}/pending"),
    )
    delayed = pending.document.get("delayed") if pending.status == 200 else None
    late = _late(delayed["reason"], visit.messages) if delayed else ""
    own = visit.messages.gettext("Your feed")
    title = own if visit.is_bound else visit.messages.gettext("Feed of {user}", user=user)
    ask = _ask_form(visit) if _may_ask(visit) else ""
    since = _baseline(shown.answer.document, last) if shown.answer.status == 200 else None
    wrapped = shown.html if since is None else f'<div data-since="{since}">{shown.html}</div>'
    news = ""
    if since is not None and last is not None:
        news = (await show(visit, _digest_part(visit, user, str(since), deck))).html
    links = feed_pages.subscriptions(user, visit.messages)
    body = f"<h1>{text(title)}</h1>{late}{news}{ask}{wrapped}{links}"
    answer = page(visit, title, body, status=shown.answer.status)
    if since is not None:
        _remember_visit(visit.request, answer, user, since, shown.answer.document["cluster_version"])
    return answer


def _digest_part(visit: Visit, user: str, since: str, deck: str | None) -> Part:
    """Return the part with what is new since a version."""

    def shown(document: Mapping[str, Any], messages: Messages) -> str:
        return feed_pages.digest(document, messages, deck=deck)

    address = feed_address(_named(visit), part=_DIGEST, since=since)
    return Part(address, _digest_source(user, since), shown, (f"clusters:{user}",))


def _digest_source(user: str, since: str) -> str:
    return f"/api/users/{segment(user)}/digest?{urlencode({'since': since})}"


def _late(reason: str, messages: Messages) -> str:
    said = f'<span lang="{ENGLISH}">{text(reason)}</span>'
    return f'<p class="note">{messages.gettext("Rebuilds are delayed: {reason}.", reason=said)}</p>'


def _source(user: str) -> str:
    return f"/api/users/{segment(user)}/feed"


def _cookies(user: str) -> tuple[str, str]:
    """Return the cookie names of the last seen version and of the version at the start of the visit; they do not reveal
    the user.
    """
    short = sha256(user.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"highwater_seen_{short}", f"highwater_visit_{short}"


def _last_version(request: Request, user: str) -> int | None:
    """Return the version at the start of this visit, or else at the end of the previous one; None: there was none."""
    seen, began = _cookies(user)
    for name in (began, seen):
        value = request.cookies.get(name, "")
        if value.isascii() and value.isdigit() and len(value) <= _VERSION_DIGITS_MAX:
            return int(value)
    return None


def _baseline(document: Mapping[str, Any], last: int | None) -> int:
    """Return the version since which a change is new; on a first visit, and after the user was erased, the displayed version."""
    version: int = document["cluster_version"]
    return version if last is None or last > version else last


def _remember_visit(request: Request, answer: Response, user: str, since: int, version: int) -> None:
    seen, began = _cookies(user)
    is_secure = request.url.scheme == "https"
    for name, value, seconds in ((seen, version, COOKIE_SECONDS), (began, since, VISIT_SECONDS)):
        answer.set_cookie(
            name, str(value), max_age=seconds, path=_PATH, secure=is_secure, httponly=True, samesite="strict"
        )


def _id(visit: Visit, name: str) -> str:
    """Return the id in the address of a page.

    Raises:
        NotFoundError: nothing has such an id.
    """
    named = visit.named[name]
    if not is_uuid(named.lower()):
        raise NotFoundError(f"there is no {name} {named[:50]!r}; its address may be misspelt")
    return named


# -- a question
# -------------------------------------------------------------------------------------------------------------


def _ask_form(visit: Visit, question: str = "") -> str:
    return feed_pages.ask_form(
        _named(visit), str(uuid4()), visit.messages, question, has_organization=_has_organization(visit)
    )


def _body(sent: Mapping[str, str], *, is_bound: bool) -> dict[str, Any]:
    """Return the user and the payer, if the reader's key does not name them."""
    named = {} if is_bound or not sent.get("user") else {"user_id": sent["user"]}
    return named | ({"organization_id": sent["organization"]} if sent.get("organization") else {})


def _once(sent: Mapping[str, str]) -> dict[str, str]:
    """Return the idempotency key that makes a form sent twice one action."""
    return {"Idempotency-Key": sent["once"]} if is_uuid(sent.get("once", "")) else {}


async def ask(visit: Visit) -> Response:
    """Submit a question; redirect the browser to the page where the answer appears."""
    sent = await form(visit)
    asked = sent.get("query", "").replace("\r\n", "\n")
    body = {"query": asked, **_body(sent, is_bound=visit.is_bound)}
    answer = await visit.ask("POST", "/api/query", headers=_once(sent), body=body)
    if answer.status != 202:
        title = visit.messages.gettext("Ask a question")
        told = f"<h1>{title}</h1>{refusal(answer.detail)}{_ask_form(visit.of_user(sent.get('user')), asked)}"
        return page(visit, title, told, status=answer.status)
    document = answer.document
    after = urlencode({"after": ",".join(document["positions"])})
    return RedirectResponse(f"{making_pages.question_address(document['request_id'])}?{after}", _SEE_OTHER)


async def _followed(
    visit: Visit, title: str, part: Part, beside: Callable[[], Awaitable[str]] | None = None
) -> Response:
    """Return a page of one part, which was requested a moment ago; `beside` returns what the page shows after it."""
    if "part" in visit.request.query_params:
        return await serve_part(visit, part)
    shown = await show(visit, part, after=positions_seen(visit))
    more = await beside() if beside is not None and shown.answer.status == 200 else ""
    back = f'<p><a href="/read/feed">{visit.messages.gettext("Back to the feed")}</a></p>'
    return page(visit, title, f"<h1>{text(title)}</h1>{shown.html}{more}{back}", status=shown.answer.status)


async def question(visit: Visit) -> Response:
    """Show a question: its progress, or its answer."""
    named = _id(visit, "question")
    source = f"/api/query/{segment(named)}/status"
    address = f"{making_pages.question_address(named)}?part=1"
    return await _followed(visit, visit.messages.gettext("Question"), Part(address, source, making_pages.answer))


# -- a deck
# -----------------------------------------------------------------------------------------------------------------


async def _subject(visit: Visit, user: str, named: Mapping[str, str]) -> Subject:
    """Return what a form or an address names: a cluster of the feed, or what is new since a version.

    Raises:
        NotFoundError: the feed does not have the cluster, or no longer has it.
    """
    since = named.get("digest")
    answer = await visit.ask("GET", _source(user) if since is None else _digest_source(user, since))
    if answer.status != 200:
        raise UnprocessableError(answer.detail)
    if since is not None:
        return feed_pages.digest_subject(answer.document)
    for item in answer.document["items"]:
        if item["cluster_id"] == named.get("cluster", ""):
            return feed_pages.cluster_subject(item, visit.messages)
    raise NotFoundError("the feed no longer has this cluster; open the feed again and choose another one")


def _required_user(visit: Visit) -> str:
    if visit.user is None:
        raise UnprocessableError("the user is missing; open the feed and choose a cluster there", field="user")
    return visit.user


async def deck_form(visit: Visit) -> Response:
    """Show the form for the subject of a deck of a cluster or a digest."""
    return _deck_page(visit, await _subject(visit, _required_user(visit), visit.request.query_params))


def _deck_page(visit: Visit, subject: Subject, message: str = "", status: int = 200) -> Response:
    asked = feed_pages.deck_form(
        subject, _named(visit), str(uuid4()), visit.messages, has_organization=_has_organization(visit)
    )
    title = visit.messages.gettext("Make a deck")
    heading = f"<h1>{title}: {text(subject.title)}</h1>"
    return page(visit, title, f"{heading}{message}{note(subject.about)}{asked}", status=status)


async def make_deck(visit: Visit) -> Response:
    """Request a deck: store its source as a document, submit the job, and redirect the browser to the job's page."""
    sent = await form(visit)
    visit = visit.of_user(sent.get("user"))
    subject = await _subject(visit, _required_user(visit), sent)
    who = _body(sent, is_bound=visit.is_bound)
    named = {"filename": f"{subject.kind}.md", **{name: who[name] for name in ("organization_id",) if name in who}}
    stored = await visit.ask(
        "PUT", f"/api/blobs?{urlencode(named)}", content=subject.source.encode(), kind="text/markdown"
    )
    if stored.status not in (200, 201):
        return _deck_page(visit, subject, refusal(stored.detail), stored.status)
    args = {"query": sent.get("query", ""), "slides": number(sent.get("slides", ""))}
    args["source_document_ids"] = [stored.document["sha256"]]
    body = {"kind": "generation", "args": args, **who}
    answer = await visit.ask("POST", "/api/jobs", headers=_once(sent), body=body)
    if answer.status != 202:
        return _deck_page(visit, subject, refusal(answer.detail), answer.status)
    document = answer.document
    after = urlencode({"after": ",".join(document["positions"])})
    return RedirectResponse(f"{making_pages.job_address(document['job_id'])}?{after}", _SEE_OTHER)


async def job(visit: Visit) -> Response:
    """Show the progress of a deck."""
    named = _id(visit, "job")
    part = Part(f"{making_pages.job_address(named)}?part=1", f"/api/jobs/{segment(named)}", making_pages.job)
    return await _followed(visit, visit.messages.gettext("Your deck"), part)


async def deck(visit: Visit) -> Response:
    """Show a deck, and its public links."""
    named = _id(visit, "deck")
    part = Part(f"{making_pages.deck_address(named)}?part=1", f"/api/presentations/{segment(named)}", making_pages.deck)
    return await _followed(visit, visit.messages.gettext("Deck"), part, lambda: shared.links(visit, named))
