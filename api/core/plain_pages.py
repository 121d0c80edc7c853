"""Pages without scripts or external files: `/docs`, `/problems`, and the page for a wrong address."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from highwater.api.core.encodings import encoded, negotiate
from highwater.api.core.policies import style_policy

_STYLE = """
:root{color-scheme:light dark;--line:#8886;--soft:#8881}
html{background:Canvas;color:CanvasText}
body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:0 auto;padding:1rem}
details{border:1px solid var(--line);border-radius:.5rem;margin:.4rem 0;padding:.4rem .8rem}
summary{cursor:pointer;overflow-wrap:anywhere} summary b{display:inline-block;min-width:4.5rem} summary span{opacity:.75}
code,pre{font-family:ui-monospace,monospace;font-size:.9em} pre{overflow:auto;background:var(--soft);padding:.6rem}
table{border-collapse:collapse;width:100%} th,td{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0}
td{border-top:1px solid var(--line)} h2{margin-top:2rem} :focus-visible{outline:3px solid #4ea1ff}
"""
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": style_policy(_STYLE),
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}


def framed(title: str, body: str) -> str:
    """Return a whole page from a title and HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>{body}</main></body></html>"
    )


def answer(request: Request, page: str) -> Response:
    """Return a page in a coding that the browser accepts: the operations of the API are 600 kB of text, and 60 kB
    compressed.
    """
    fields = request.headers.getlist("accept-encoding")
    encoding = negotiate(", ".join(fields) if fields else None) or "identity"
    headers = dict(HEADERS) if encoding == "identity" else {**HEADERS, "Content-Encoding": encoding}
    return HTMLResponse(encoded(page.encode(), encoding), headers=headers)


def not_found_page(path: str) -> str:
    """Return the page for an address that does not exist."""
    return framed(
        "Not found",
        f"<h1>Not found</h1><p>There is no page at <code>{escape(path)}</code>.</p>"
        '<p><a href="/">Dashboard</a> · <a href="/docs">Routes of the API</a></p>',
    )
