"""The frame of readers' pages and their smallest pieces, as HTML.

Invariants. Every external text is escaped here (`text`, `address`). A page declares its language, has one `h1` and a
main landmark, and shows everything without a script; the script only keeps it current.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from urllib.parse import quote, urlsplit

from highwater.api.readers import files

# Between two teams, and instead of a score.
DASH = "\u2013"


def text(value: object) -> str:
    """Return anything as HTML text or as the value of an attribute."""
    return escape(str(value))


def segment(value: str) -> str:
    """Return one segment of a path."""
    return quote(value, safe="")


def framed(title: str, body: str, *, reader: str = "", sign: str = "", changes: str = "") -> str:
    """Return a whole page; `reader` distinguishes the snapshots of readers, `sign` is the link to sign in or out, `changes`
    the socket of patches.
    """
    socket = f' data-changes="{text(changes)}"' if changes else ""
    return (
        f'{_head(title)}<link rel="modulepreload" href="{files.address("highwater.js")}">'
        f'<script type="module" src="{files.address("read.js")}"></script></head>'
        f'<body data-reader="{text(reader)}"{socket}><a class="skip" href="#page">Skip to the page</a>'
        '<header><b><a href="/read">Highwater</a></b><nav aria-label="Pages"><a href="/read">Leagues</a> '
        f'<a href="/read/feed">Feed</a></nav>{sign}<span data-status role="status"></span></header>'
        f'<main id="page" tabindex="-1">{body}</main>'
        "<footer><p data-plain><small>This page updates itself where JavaScript is on. Reload it to see what is new."
        "</small></p></footer></body></html>"
    )


def framed_alone(title: str, body: str) -> str:
    """Return a whole page without scripts and links, which search engines do not list."""
    return (
        f'{_head(title)}<meta name="robots" content="noindex"></head><body><header><b>Highwater</b></header>'
        f'<main id="page" tabindex="-1">{body}</main></body></html>'
    )


def _head(title: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{text(title)} · Highwater</title>'
        f'<link rel="icon" href="/favicon.ico" type="image/svg+xml"><link rel="stylesheet" href="{files.address("read.css")}">'
    )


def sentence(words: str) -> str:
    """Return the detail of a problem as a sentence; a name at its beginning keeps its case."""
    begun = words[:1].upper() + words[1:] if words.partition(" ")[0].isalpha() else words
    return begun if not begun or begun.endswith((".", "!", "?")) else f"{begun}."


def note(words: str) -> str:
    """Return a line of explanation."""
    return f'<p class="note">{text(words)}</p>'


def web_link(url: object, words: str, rel: str) -> str:
    """Return a link to another site; empty if `url` does not begin with http or https: other schemes could run scripts."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
    except ValueError:
        return ""
    if parts is None or parts.scheme not in ("http", "https") or not parts.netloc:
        return ""
    return f'<a href="{text(url)}" rel="{rel}">{text(words)}</a>'


def card(body: str) -> str:
    """Return a separate block."""
    return f'<div class="card">{body}</div>'


def moment(iso: str | None, *, has_time: bool = True) -> str:
    """Return a time of the API in readable form, in UTC."""
    if not iso:
        return ""
    at = datetime.fromisoformat(iso)
    shown = f"{at:%a} {at.day} {at:%b %Y}" + (f", {at:%H:%M} UTC" if has_time else "")
    return f'<time datetime="{text(iso)}">{shown}</time>'


def table(caption: str, heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that keeps its columns on a phone and scrolls within itself; cells are HTML, the second column
    names the row.

    Args:
        caption: its contents.
        heads: short name and full name of each column.
        rows: cells in the order of the columns.
    """
    head = "".join(
        f'<th scope="col"{_name_class(place)}><abbr title="{text(full)}">{text(short)}</abbr></th>'
        for place, (short, full) in enumerate(heads)
    )
    lines = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row" class="name">{cell}</th>' if place == 1 else f"<td>{cell}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption)}"><table><caption>{text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _name_class(place: int) -> str:
    return ' class="name"' if place == 1 else ""


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names and values; values are HTML."""
    return "<dl>" + "".join(f"<dt>{text(name)}</dt><dd>{value}</dd>" for name, value in pairs) + "</dl>"
