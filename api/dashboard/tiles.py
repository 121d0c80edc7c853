"""Figures that link to what they count, and placeholders of lists that are loading or filtered. Pure."""

from __future__ import annotations

from highwater.api.dashboard.view import text

# A figure that has one of these digits counts something.
_SOME = frozenset("123456789")


def linked_tile(value: str, label: str, address: str, *, tone: str = "", more: str = "") -> str:
    """Return a figure with its name, as HTML, which links to what it counts."""
    return (
        f'<a class="hw-tile hw-leads" href="{text(address)}"><b class="{tone}">{text(value)}</b>'
        f"<span>{text(label)}</span>{more}</a>"
    )


def linked(value: str, address: str, *, tone: str = "") -> str:
    """A figure in a table or a sentence, as HTML, which leads to what it counts; none and unknown lead nowhere."""
    if not _SOME.intersection(value):
        return text(value)
    named = f' class="{tone}"' if tone else ""
    return f'<a{named} href="{text(address)}">{text(value)}</a>'


def filtered(shown: int, total: int, group: str, address: str) -> str:
    """Return the note above a list that a figure's link filters."""
    return (
        f'<p class="hw-small hw-flat">{shown:,} of the latest {total:,}: {text(group)}. '
        f'<a href="{text(address)}">Show all</a></p>'
    )


def loading(what: str) -> str:
    """Return the placeholder of something that is loading."""
    return f'<div class="hw-card hw-muted" role="status">Loading {text(what)}…</div>'


def missing(noun: str, identifier: str, address: str) -> str:
    """Return the note on the page of something that the visitor may not see; `address` lists its kind."""
    return (
        f'<div class="hw-card"><p>There is no {noun} <span class="hw-mono">{text(identifier)}</span> that you may see. It was '
        f'erased, or its id is misspelt.</p><p><a href="{address}">See the latest {address.removeprefix("/")}</a></p></div>'
    )
