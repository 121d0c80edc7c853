"""Makes whole pages for readers, and parses their forms."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from starlette.responses import Response

from highwater.api.core.bodies import FORM, media_type_of
from highwater.api.core.errors import TooLargeError, UnprocessableError
from highwater.api.core.policies import own_files_policy
from highwater.api.readers.frame import framed, framed_alone, language_links
from highwater.api.readers.inside import LANGUAGE, LANGUAGE_COOKIE, Visit
from highwater.api.readers.parts import html
from highwater.streams.messages import catalogue

# A comment or a question with every character escaped.
FORM_BYTES_MAX = 64 << 10
FIELDS_MAX = 20
# The maximum for which browsers keep a cookie.
COOKIE_SECONDS = 400 * 86_400
# What an address says about an action before it, which another language does not repeat.
_OF_ACTIONS = ("done", "after")
_READER_CHARACTERS = 16
_DIGITS_MAX = 9
_POSITIONS = re.compile(r"[a-z.-]+/\d{1,5}/\d{1,18}(,[a-z.-]+/\d{1,5}/\d{1,18}){0,9}", re.ASCII)


def reader_of(visit: Visit) -> str:
    """Return what distinguishes the snapshots of readers in a browser; it reveals nothing about the key."""
    authorization = visit.visitor.authorization
    return "" if authorization is None else sha256(f"reader:{authorization}".encode()).hexdigest()[:_READER_CHARACTERS]


def page(visit: Visit, title: str, body: str, *, status: int = 200, changes: str = "") -> Response:
    """Return a page of this reader; `changes` is the address of its socket of patches, empty: it polls alone."""
    whole = framed(
        title,
        body,
        visit.messages,
        reader=reader_of(visit),
        sign=_sign_link(visit),
        changes=changes,
        languages=_language_links(visit),
    )
    answer = html(visit, whole, status=status, headers={"Content-Security-Policy": own_files_policy()})
    if visit.chosen_language is not None:
        is_secure = visit.request.url.scheme == "https"
        answer.set_cookie(
            LANGUAGE_COOKIE, visit.chosen_language, COOKIE_SECONDS, path="/read", secure=is_secure, samesite="lax"
        )
    return answer


def public_page(visit: Visit, title: str, body: str, status: int = 200) -> Response:
    """Return a page for anybody who has its address: it leads nowhere else, and search engines do not list it."""
    headers = {
        "Content-Security-Policy": own_files_policy(),
        "X-Robots-Tag": "noindex",
        "Cache-Control": "no-store",
    }
    return html(visit, framed_alone(title, body, visit.messages), status=status, headers=headers)


def _sign_link(visit: Visit) -> str:
    """Return the link to sign out, or in, where a key makes a difference."""
    if visit.visitor.authorization is not None:
        return f'<a href="/logout">{visit.messages.gettext("Sign out")}</a>'
    if not visit.is_anonymous:
        return ""
    sign_in = visit.messages.gettext("Sign in")
    return f'<a href="/login?next={quote(visit.request.url.path, safe="")}">{sign_in}</a>'


def _language_links(visit: Visit) -> str:
    """Return the links to this page in the other languages; none after a form, whose address shows nothing."""
    if visit.request.method == "POST":
        return ""
    dropped = {LANGUAGE, *_OF_ACTIONS, *(("user",) if visit.is_bound else ())}
    kept = [(name, value) for name, value in visit.request.query_params.multi_items() if name not in dropped]
    every = catalogue()
    others = [one for one in every.languages if one != visit.messages.language]
    addresses = [f"?{urlencode([*kept, (LANGUAGE, one)])}" for one in others]
    return language_links(zip(map(every.messages, others), addresses, strict=True), visit.messages)


def number(words: str) -> Any:
    """Return a number of a form; anything else is left for the API to refuse."""
    return int(words) if words.isascii() and words.isdigit() and len(words) <= _DIGITS_MAX else words


def positions_seen(visit: Visit) -> str:
    """Return the positions of what this reader has just written, from the address; empty: none, or malformed."""
    named = visit.request.query_params.get("after", "")
    return named if _POSITIONS.fullmatch(named) else ""


async def form(visit: Visit) -> dict[str, str]:
    """Return the fields of a form; for a repeated field, the last one.

    Raises:
        TooLargeError: it is larger than any of our forms.
        UnprocessableError: it is not a form.
    """
    body = await visit.request.body()
    if len(body) > FORM_BYTES_MAX:
        raise TooLargeError(f"the form is larger than {FORM_BYTES_MAX} bytes")
    if media_type_of(visit.request.headers.get("content-type", "")) != FORM:
        raise UnprocessableError(f"the body is not {FORM}")
    try:
        sent = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError as error:
        raise UnprocessableError(f"this is not a form: {error}") from error
    return {name: values[-1] for name, values in sent.items()}
