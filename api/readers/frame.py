"""The frame of readers' pages and their smallest pieces, as HTML.

Invariants. Every external text is escaped here (`text`, `address`). A page declares its language, has one `h1` and a
main landmark, and shows everything without a script; the script only keeps it current. Its own words are messages in
the language of the reader; what the API says in English is marked as English.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from urllib.parse import quote, urlsplit

import orjson

from highwater.api.readers import files
from highwater.streams.languages import ENGLISH
from highwater.streams.messages import Messages, gettext_noop

# Between two teams, and instead of a score.
DASH = "\u2013"
# The words of `read.js`, by the names that it uses.
_SCRIPT_WORDS: Mapping[str, str] = {
    "changed": gettext_noop("Changed"),
    "loading": gettext_noop("Loading\u2026"),
    "new": gettext_noop("New"),
    "newOnes": gettext_noop("{number} new"),
    "news": gettext_noop("{number} with news since your last visit"),
    "signedOut": gettext_noop("You are signed out. Reload the page to sign in."),
    "updating": gettext_noop("Updating\u2026"),
}


def text(value: object) -> str:
    """Return anything as HTML text or as the value of an attribute."""
    return escape(str(value))


def segment(value: str) -> str:
    """Return one segment of a path."""
    return quote(value, safe="")


def framed(
    title: str,
    body: str,
    messages: Messages,
    *,
    reader: str = "",
    sign: str = "",
    changes: str = "",
    languages: str = "",
) -> str:
    """Return a whole page; `reader` distinguishes the snapshots of readers, `sign` is the link to sign in or out, `changes`
    the socket of patches, `languages` the links to the page in other languages.
    """
    socket = f' data-changes="{text(changes)}"' if changes else ""
    words = orjson.dumps({name: messages.template(word) for name, word in _SCRIPT_WORDS.items()}).decode()
    plain = messages.gettext("This page updates itself where JavaScript is on. Reload it to see what is new.")
    return (
        f'{_head(title, messages)}<link rel="modulepreload" href="{files.address("highwater.js")}">'
        f'<script type="module" src="{files.address("read.js")}"></script></head>'
        f'<body data-reader="{text(reader)}" data-words="{text(words)}"{socket}>'
        f'<a class="skip" href="#page">{messages.gettext("Skip to the page")}</a>'
        f'<header><b><a href="/read">Highwater</a></b><nav aria-label="{messages.gettext("Pages")}">'
        f'<a href="/read">{messages.gettext("Leagues")}</a> <a href="/read/feed">{messages.gettext("Feed")}</a></nav>'
        f'{sign}<span data-status role="status"></span></header><main id="page" tabindex="-1">{body}</main>'
        f"<footer>{languages}<p data-plain><small>{plain}</small></p></footer></body></html>"
    )


def framed_alone(title: str, body: str, messages: Messages) -> str:
    """Return a whole page without scripts and links, which search engines do not list."""
    return (
        f'{_head(title, messages)}<meta name="robots" content="noindex"></head><body><header><b>Highwater</b></header>'
        f'<main id="page" tabindex="-1">{body}</main></body></html>'
    )


def language_links(links: Iterable[tuple[Messages, str]], messages: Messages) -> str:
    """Return the links to this page in other languages, each named in its own."""
    names = " ".join(
        f'<a href="{text(address)}" lang="{other.language}" hreflang="{other.language}">'
        f"{other.pgettext('this language, in itself', 'English')}</a>"
        for other, address in links
    )
    return f'<nav class="languages" aria-label="{messages.gettext("Language")}">{names}</nav>' if names else ""


def _head(title: str, messages: Messages) -> str:
    return (
        f'<!doctype html><html lang="{messages.language}"><head><meta charset="utf-8">'
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


def problem_note(detail: str) -> str:
    """Return the detail of a problem as a line; the API's problems are in English."""
    return f'<p class="note" lang="{ENGLISH}">{text(sentence(detail))}</p>'


def refusal(detail: str) -> str:
    """Return the detail of a problem as the refusal of an action."""
    return f'<p class="wrong" role="alert" lang="{ENGLISH}">{text(sentence(detail))}</p>'


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


def moment(iso: str | None, messages: Messages, *, has_time: bool = True) -> str:
    """Return a time of the API in readable form, in UTC."""
    if not iso:
        return ""
    at = datetime.fromisoformat(iso)
    shown = messages.full_date(at)
    if has_time:
        shown = messages.pgettext("date with time", "{date}, {time} UTC", date=shown, time=f"{at:%H:%M}")
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
