"""The static files of readers' pages: their addresses, encodings, and caching (R4.26).

Invariants. An address with a content hash always has the same bytes, so it is cached for a year and never revalidated.
An address without one is revalidated each time. A file of another release is served in its current form, and is not
cached.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import brotli
from starlette.requests import Request
from starlette.responses import Response

from highwater.api.core.conditional import condition, is_match
from highwater.api.core.encodings import Encoding, negotiate
from highwater.api.core.errors import NotAcceptableError, NotFoundError

FOLDER = Path(__file__).parent / "static"
PATH = "/read/static/"
YEAR_SECONDS = 31_536_000
_KINDS = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".ts": "text/plain; charset=utf-8",
}
# The form of a file's name in its address: `highwater.0123456789ab.js`.
_HASHED = re.compile(r"([a-z.]+?)\.([0-9a-f]{12})(\.[a-z]+)")
_HASH_CHARACTERS = 12


class File(NamedTuple):
    """A file in every encoding."""

    bodies: Mapping[Encoding, bytes]
    kind: str
    tag: str

    def address(self, name: str) -> str:
        """Return its address, valid for a year."""
        stem, _, suffix = name.rpartition(".")
        return f"{PATH}{stem}.{self.tag}.{suffix}"


@cache
def files() -> Mapping[str, File]:
    """Return every file by its name; files that import no other come first, since an import names its file by hash."""
    found: dict[str, File] = {}
    for name in ("highwater.js", "highwater.d.ts", "read.css", "read.js"):
        text = (FOLDER / name).read_text(encoding="utf-8")
        for other, file in found.items():
            text = text.replace(f'from "./{other}"', f'from "{file.address(other)}"')
        body = text.encode()
        bodies: dict[Encoding, bytes] = {
            "br": brotli.compress(body, quality=11),
            "gzip": gzip.compress(body, 9, mtime=0),
            "identity": body,
        }
        tag = sha256(body).hexdigest()[:_HASH_CHARACTERS]
        found[name] = File(bodies, _KINDS[Path(name).suffix], tag)
    return found


def address(name: str) -> str:
    """Return the address of a file, valid for a year."""
    return files()[name].address(name)


def serve(request: Request, named: str) -> Response:
    """Return a file by the last segment of its address.

    Raises:
        NotFoundError: the file does not exist.
        NotAcceptableError: the client accepts none of the encodings.
    """
    hashed = _HASHED.fullmatch(named)
    name = named if hashed is None else f"{hashed[1]}{hashed[3]}"
    file = files().get(name)
    if file is None:
        raise NotFoundError(f"there is no file {named[:100]!r}")
    is_for_ever = hashed is not None and hashed[2] == file.tag
    fields = request.headers.getlist("accept-encoding")
    encoding = negotiate(", ".join(fields) if fields else None)
    if encoding is None:
        raise NotAcceptableError(headers={"Vary": "Accept-Encoding"})
    headers = {
        "Cache-Control": f"public, max-age={YEAR_SECONDS}, immutable" if is_for_ever else "no-cache",
        "ETag": f'W/"{file.tag}"',
        "Vary": "Accept-Encoding",
        # Other sites may use the client module too; these files contain no private data.
        "Access-Control-Allow-Origin": "*",
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
    if is_match(condition(request), file.tag):
        return Response(status_code=304, headers=headers)
    if encoding != "identity":
        headers["Content-Encoding"] = encoding
    return Response(file.bodies[encoding], headers={**headers, "Content-Type": file.kind})
