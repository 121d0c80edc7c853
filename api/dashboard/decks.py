"""Previews of decks and outlines: slides with their titles, bullets and sources.

Invariant: pure functions of the API's responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from highwater.api.dashboard.view import text
from highwater.streams.wording import counted

# The beginning of a digest distinguishes documents without a name.
_DIGEST_CHARACTERS = 12


def deck_html(deck: Mapping[str, Any]) -> str:
    """Return a deck, as a card."""
    slides = "".join(map(_slide, deck["slides"]))
    views = deck["view_count"]
    told = f"{counted(len(deck['slides']), 'slide')}, {counted(views, 'view')}"
    return _card(deck["title"], told, slides)


def outline_html(outline: Mapping[str, Any]) -> str:
    """Return an outline that waits for approval, as a card."""
    slides = "".join(
        f'<section class="hw-slide"><h3>{number}. {text(one["title"])}</h3>{_list(map(text, one["points"]))}</section>'
        for number, one in enumerate(outline["slides"], start=1)
    )
    return _card(
        outline["title"],
        f"an outline of {counted(len(outline['slides']), 'slide')}; slides are made after it is approved",
        slides,
    )


def _card(title: str, message: str, slides: str) -> str:
    return (
        f'<div class="hw-card"><h2 class="hw">{text(title)}</h2><p class="hw-muted hw-small">{message}</p>'
        f'<div class="hw-slides">{slides}</div></div>'
    )


def _slide(slide: Mapping[str, Any]) -> str:
    sources = slide.get("sources") or ()
    bullets = [
        text(bullet) + _source(sources[place] if place < len(sources) else None)
        for place, bullet in enumerate(slide["bullets"])
    ]
    notes = slide.get("notes")
    more = (
        f'<details><summary class="hw-small">Notes</summary><p class="hw-small">{text(notes)}</p></details>'
        if notes
        else ""
    )
    table = slide.get("table")
    rows = f'<p class="hw-small hw-muted">with a table of {counted(table["rows_total"], "row")}</p>' if table else ""
    return f'<section class="hw-slide"><h3>{slide["number"]}. {text(slide["title"])}</h3>{_list(bullets)}{rows}{more}</section>'


def _source(source: Mapping[str, Any] | None) -> str:
    """Return the source of a bullet."""
    if source is None:
        return ""
    name = source.get("name") or source["document"][:_DIGEST_CHARACTERS]
    heading = f" · {source['heading']}" if source.get("heading") else ""
    return (
        f' <span class="hw-muted hw-small" title="{text(source["document"])}, passage {source["place"] + 1}">'
        f"({text(name)}{text(heading)})</span>"
    )


def _list(items: Any) -> str:
    found = "".join(f"<li>{one}</li>" for one in items)
    return f"<ul>{found}</ul>" if found else ""
