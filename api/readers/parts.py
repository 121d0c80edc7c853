"""The parts of readers' pages: each shows one resource of the API, and is sent with the page and alone.

Invariants. A part carries the version and the ETag of its resource, so that a browser never replaces a newer one by an
older one; its ETag also names this release, since another may show the same version differently. A 304 reads no
payload.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from highwater.api.core.conditional import CACHE_PRIVATE, condition
from highwater.api.core.encodings import encoded, negotiate
from highwater.api.core.errors import NotAcceptableError
from highwater.api.readers.frame import note, sentence, text
from highwater.api.readers.inside import Answer, Visit

_HTML = "text/html; charset=utf-8"
_OK, _NOT_MODIFIED = 200, 304
_PASSED = ("x-resource-version", "x-caused-by", "x-stale", "retry-after")


class Part(NamedTuple):
    """A part of a page.

    Attributes:
        address: of the part alone.
        source: the path of the API that it shows.
        show: converts its JSON to HTML.
        keys: resources whose change makes it stale.
        element: its id on the page.
    """

    address: str
    source: str
    show: Callable[[Any], str]
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
    for path in sorted(Path(__file__).parent.glob("*.py")):
        held.update(path.read_bytes())
    return held.hexdigest()[:8]


def tag_of(answer: Answer) -> str | None:
    """Return the ETag of a part, without quotes; None if the response has none."""
    found = re.fullmatch(r'(?:W/)?"([^"]*)"', answer.headers.get("etag", ""))
    return None if found is None else f"{release()}-{found[1]}"


def _source_condition(request: Request) -> dict[str, str]:
    """Return the API's `If-None-Match`: ETags of other releases match nothing."""
    wanted = re.findall(rf'"{release()}-([^"]*)"', condition(request) or "")
    return {"If-None-Match": ", ".join(f'W/"{tag}"' for tag in wanted)} if wanted else {}


async def serve_part(visit: Visit, part: Part) -> Response:
    """Return a part alone, or 304 if the browser has it; an error in the API's form."""
    answer = await visit.ask("GET", part.source, headers=_source_condition(visit.request))
    headers = {name: answer.headers[name] for name in _PASSED if name in answer.headers}
    tag = tag_of(answer)
    if answer.status not in (_OK, _NOT_MODIFIED) or tag is None:
        headers |= {"Cache-Control": "no-store", "Content-Type": answer.headers.get("content-type", "application/json")}
        return Response(answer.body, answer.status, headers)
    headers |= {"ETag": f'W/"{tag}"', "Cache-Control": CACHE_PRIVATE, "Vary": "Accept-Encoding, Cookie"}
    if answer.status == _NOT_MODIFIED:
        return Response(status_code=_NOT_MODIFIED, headers=headers)
    return html(visit.request, part.show(answer.document), headers=headers)


async def show(visit: Visit, part: Part, *, after: str = "") -> Shown:
    """Show a part in its page; `after`: the positions of what this reader has just written.

    If it does not include these in time, the part contains a note; its next version, without the note, replaces it.
    """
    answer = await visit.ask("GET", part.source, headers={"X-Min-Position": after} if after else {})
    late = ""
    if after and answer.status != _OK:
        answer, late = await visit.ask("GET", part.source), _not_included(visit.request)
    named = f' id="{part.element}"' if part.element else ""
    # Ids may contain spaces, and no control character.
    keys = f' data-keys="{text(chr(10).join(part.keys))}"' if part.keys else ""
    opened = f'<div{named} data-part="{text(part.address)}"{keys}'
    tag = tag_of(answer)
    if answer.status == _OK and tag is not None:
        version = answer.headers.get("x-resource-version", "")
        quoted = text(f'W/"{tag}"')
        told = f' data-etag="{quoted}" data-version="{text(version)}"'
        return Shown(f"{opened}{told}>{late}{part.show(answer.document)}</div>", answer)
    said = "This is being prepared. Reload the page in a moment." if answer.status == 202 else sentence(answer.detail)
    return Shown(f"{opened}>{note(said)}</div>", answer)


def _not_included(request: Request) -> str:
    again = text(f"?{request.url.query}")  # the same page
    return f'<p class="note">What you sent is not included here yet. <a href="{again}">Load the page again</a></p>'


def html(request: Request, body: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return HTML in an encoding that the browser accepts.

    Raises:
        NotAcceptableError: it accepts none of the encodings.
    """
    fields = request.headers.getlist("accept-encoding")
    encoding = negotiate(", ".join(fields) if fields else None)
    if encoding is None:
        raise NotAcceptableError(headers={"Vary": "Accept-Encoding"})
    sent = {"Cache-Control": CACHE_PRIVATE, "Vary": "Accept-Encoding, Cookie", **(headers or {}), "Content-Type": _HTML}
    if encoding != "identity":
        sent["Content-Encoding"] = encoding
    return Response(encoded(body.encode(), encoding), status, sent)
