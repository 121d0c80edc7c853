"""The parts of readers' pages: each shows one resource of the API, and is sent with the page and alone.

Invariants. A part carries the version and the ETag of its resource, so that a browser never replaces a newer one by an
older one; its ETag also names this release and its language, since the same version is shown differently in another.
Its address on a page names the language, so it stays that of the page. A 304 reads no payload.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from starlette.responses import Response

from highwater.api.core.conditional import CACHE_PRIVATE, condition
from highwater.api.core.encodings import encoded, negotiate
from highwater.api.core.errors import NotAcceptableError
from highwater.api.readers.frame import note, problem_note, text
from highwater.api.readers.inside import LANGUAGE, Answer, Visit
from highwater.streams import messages as catalogue
from highwater.streams.messages import Messages

_HTML = "text/html; charset=utf-8"
_OK, _ACCEPTED, _NOT_MODIFIED = 200, 202, 304
VARY = "Accept-Encoding, Accept-Language, Cookie"
_PASSED = ("x-resource-version", "x-caused-by", "x-stale", "retry-after")


class Part(NamedTuple):
    """A part of a page.

    Attributes:
        address: of the part alone.
        source: the path of the API that it shows.
        show: converts its JSON to HTML in a language.
        keys: resources whose change makes it stale.
        element: its id on the page.
    """

    address: str
    source: str
    show: Callable[[Any, Messages], str]
    keys: tuple[str, ...] = ()
    element: str = ""


class Shown(NamedTuple):
    """A part as it is put into a page, and the API's response."""

    html: str
    answer: Answer


@cache
def release() -> str:
    """Return what distinguishes the HTML of this release from that of another one."""
    held = sha256()
    words = (Path(catalogue.__file__), *sorted(catalogue.FOLDER.glob("*.po")))
    for path in (*sorted(Path(__file__).parent.glob("*.py")), *words):
        held.update(path.read_bytes())
    return held.hexdigest()[:8]


def tag_of(answer: Answer, language: str) -> str | None:
    """Return the ETag of a part in a language, without quotes; None if the response has none."""
    found = re.fullmatch(r'(?:W/)?"([^"]*)"', answer.headers.get("etag", ""))
    return None if found is None else f"{_tag_prefix(language)}{found[1]}"


def _tag_prefix(language: str) -> str:
    return f"{release()}-{language}-"


def _source_condition(visit: Visit) -> dict[str, str]:
    """Return the API's `If-None-Match`: ETags of other releases and languages match nothing."""
    prefix = re.escape(_tag_prefix(visit.messages.language))
    wanted = re.findall(rf'"{prefix}([^"]*)"', condition(visit.request) or "")
    return {"If-None-Match": ", ".join(f'W/"{tag}"' for tag in wanted)} if wanted else {}


async def serve_part(visit: Visit, part: Part) -> Response:
    """Return a part alone, or 304 if the browser has it; an error in the API's form."""
    answer = await visit.ask("GET", part.source, headers=_source_condition(visit))
    headers = {name: answer.headers[name] for name in _PASSED if name in answer.headers}
    tag = tag_of(answer, visit.messages.language)
    if answer.status not in (_OK, _NOT_MODIFIED) or tag is None:
        headers |= {"Cache-Control": "no-store", "Content-Type": answer.headers.get("content-type", "application/json")}
        return Response(answer.body, answer.status, headers)
    headers |= {"ETag": f'W/"{tag}"', "Cache-Control": CACHE_PRIVATE, "Vary": VARY}
    if answer.status == _NOT_MODIFIED:
        return Response(status_code=_NOT_MODIFIED, headers=headers)
    return html(visit, part.show(answer.document, visit.messages), headers=headers)


def in_language(address: str, messages: Messages) -> str:
    """Return the address of a part, which has a query, in a language."""
    return f"{address}&{LANGUAGE}={messages.language}"


async def show(visit: Visit, part: Part, *, after: str = "") -> Shown:
    """Show a part in its page; `after`: the positions of what this reader has just written.

    If it does not include these in time, the part contains a note; its next version, without the note, replaces it.
    """
    answer = await visit.ask("GET", part.source, headers={"X-Min-Position": after} if after else {})
    late = ""
    if after and answer.status != _OK:
        answer, late = await visit.ask("GET", part.source), _not_included(visit)
    named = f' id="{part.element}"' if part.element else ""
    # Ids may contain spaces, and no control character.
    keys = f' data-keys="{text(chr(10).join(part.keys))}"' if part.keys else ""
    opened = f'<div{named} data-part="{text(in_language(part.address, visit.messages))}"{keys}'
    tag = tag_of(answer, visit.messages.language)
    if answer.status == _OK and tag is not None:
        version = answer.headers.get("x-resource-version", "")
        quoted = text(f'W/"{tag}"')
        told = f' data-etag="{quoted}" data-version="{text(version)}"'
        return Shown(f"{opened}{told}>{late}{part.show(answer.document, visit.messages)}</div>", answer)
    if answer.status == _ACCEPTED:
        said = note(visit.messages.gettext("This is being prepared. Reload the page in a moment."))
    else:
        said = problem_note(answer.detail)
    return Shown(f"{opened}>{said}</div>", answer)


def _not_included(visit: Visit) -> str:
    again = text(f"?{visit.request.url.query}")  # the same page
    said, load = (
        visit.messages.gettext("What you sent is not included here yet."),
        visit.messages.gettext("Load the page again"),
    )
    return f'<p class="note">{said} <a href="{again}">{load}</a></p>'


def html(visit: Visit, body: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return HTML in the reader's language and an encoding that the browser accepts.

    Raises:
        NotAcceptableError: it accepts none of the encodings.
    """
    fields = visit.request.headers.getlist("accept-encoding")
    encoding = negotiate(", ".join(fields) if fields else None)
    if encoding is None:
        raise NotAcceptableError(headers={"Vary": "Accept-Encoding"})
    common = {"Cache-Control": CACHE_PRIVATE, "Vary": VARY, "Content-Language": visit.messages.language}
    sent = {**common, **(headers or {}), "Content-Type": _HTML}
    if encoding != "identity":
        sent["Content-Encoding"] = encoding
    return Response(encoded(body.encode(), encoding), status, sent)
