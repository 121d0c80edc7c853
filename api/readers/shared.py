"""Answers requests for public links of decks, from people without a key, and makes and revokes links for their owners.

Invariant: the page of a link shows one deck and leads nowhere else; the address of a new link is shown once.
"""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from highwater.api.core.errors import NotFoundError
from highwater.api.core.heads import IS_HEAD
from highwater.api.jobs import routes_presentations as presentations
from highwater.api.readers import making_pages
from highwater.api.readers.frame import problem_note, refusal, segment, text
from highwater.api.readers.inside import Visit
from highwater.api.readers.pages import form, page, public_page
from highwater.streams.checks import is_uuid

_SEE_OTHER = 303


async def shared(visit: Visit) -> Response:
    """Show the deck of a link."""
    method = "HEAD" if IS_HEAD in visit.request.scope else "GET"  # a HEAD counts no view
    answer = await visit.ask(method, f"/api/shared/{segment(visit.named['token'])}")
    if answer.status != 200:
        title = visit.messages.gettext("Not shown")
        shown = public_page(visit, title, f"<h1>{title}</h1>{problem_note(answer.detail)}", answer.status)
        if "retry-after" in answer.headers:
            shown.headers["retry-after"] = answer.headers["retry-after"]
        return shown
    deck = answer.document or {"title": "", "slides": ()}
    slides = making_pages.deck(deck, visit.messages)
    return public_page(visit, deck["title"], f"<h1>{text(deck['title'])}</h1>{slides}")


async def links(visit: Visit, deck: str) -> str:
    """Return the links of a deck with their forms; nothing for a reader that may not make one."""
    if not visit.may(presentations.post_link):
        return ""
    answer = await visit.ask("GET", f"/api/presentations/{segment(deck)}/links")
    return making_pages.links(deck, answer.document["links"], visit.messages) if answer.status == 200 else ""


def _deck(visit: Visit) -> str:
    named = visit.named["deck"]
    if not is_uuid(named.lower()):
        raise NotFoundError(f"there is no deck {named[:50]!r}; its address may be misspelt")
    return named


async def make_link(visit: Visit) -> Response:
    """Make a link, and show its address."""
    deck = _deck(visit)
    answer = await visit.ask("POST", f"/api/presentations/{segment(deck)}/links")
    if answer.status != 201:
        shown = refusal(answer.detail)
    else:
        address = str(visit.request.url.replace(path=answer.document["url"], query=""))
        shown = making_pages.new_link(address, visit.messages)
    back = f'<p><a href="{making_pages.deck_address(deck)}">{visit.messages.gettext("Back to the deck")}</a></p>'
    title = visit.messages.gettext("Public link")
    return page(visit, title, f"<h1>{title}</h1>{shown}{back}", status=answer.status)


async def revoke_link(visit: Visit) -> Response:
    """Revoke a link; redirect the browser to the deck."""
    deck, sent = _deck(visit), await form(visit)
    answer = await visit.ask("DELETE", f"/api/presentations/{segment(deck)}/links/{segment(sent.get('link', ''))}")
    if answer.status not in (204, 404):
        title = visit.messages.gettext("Public link")
        return page(visit, title, f"<h1>{title}</h1>{refusal(answer.detail)}", status=answer.status)
    return RedirectResponse(making_pages.deck_address(deck), _SEE_OTHER)
