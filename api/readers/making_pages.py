"""Shows requested results: the answer to a question, the progress of a deck, and its slides; pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from highwater.api.readers.frame import card, facts, moment, note, segment, text

Document = Mapping[str, Any]

_LINKS = "Anybody who has a public link sees the slides without a key, until the link is revoked."
_ENDED = {
    "failed": "The deck could not be made.",
    "revoked": "The deck was cancelled.",
    "expired": "The deck was not made in time.",
}


def question_address(request_id: str) -> str:
    """Return the address of a question's page."""
    return f"/read/questions/{segment(request_id)}"


def job_address(job_id: str) -> str:
    """Return the address of the page on a deck's progress."""
    return f"/read/jobs/{segment(job_id)}"


def deck_address(deck_id: str) -> str:
    """Return the address of a deck's page."""
    return f"/read/decks/{segment(deck_id)}"


def answer(document: Document) -> str:
    """Return the answer with its sources, or its progress."""
    if document["status"] == "completed":
        return (
            f'<section class="card"><h2>Answer</h2><p class="said">{text(document["answer"])}</p></section>'
            + _sources(document.get("sources") or ())
        )
    if document["status"] == "failed":
        return f'<p class="wrong" role="alert">The question could not be answered: {text(document["error"])}</p>'
    return card(
        f"<p data-live>Your question is being answered ({text(document['state'])}). The answer appears here.</p>"
    )


def _sources(found: Any) -> str:
    if not found:
        return ""
    lines = "".join(f"<li>{_source(one)}</li>" for one in found)
    return f'<section class="card"><h2>Sources</h2><ol>{lines}</ol></section>'


def _source(one: Document) -> str:
    where = " · ".join(text(one[name]) for name in ("document", "heading", "channel_id") if one.get(name))
    at = moment(one.get("ts"))
    said = one.get("text") or one.get("insight_id") or one.get("chunk_id") or ""
    return (
        f'<span class="said">{text(said)}</span><br><small>{" · ".join(part for part in (where, at) if part)}</small>'
    )


def job(document: Document) -> str:
    """Return the progress of a deck."""
    status = document["status"]
    if status == "completed":
        deck = (document["result"] or {}).get("presentation_id")
        ready = (
            note("There is no deck.") if deck is None else f'<p><a href="{deck_address(deck)}">Open the deck</a></p>'
        )
        return card(f'<p class="done">The deck is ready.</p>{ready}')
    if status in _ENDED:
        told = f" {text(document['error'])}" if document["error"] else ""
        return f'<p class="wrong" role="alert">{_ENDED[status]}{told}</p>'
    total = document["steps_total"] or 0
    steps = [("Status", text(status.capitalize())), ("Steps", f"{document['steps_done'] or 0} of {total or 'some'}")]
    value = f' value="{document["progress_pct"] or 0}"'
    bar = f'<progress max="100"{value} aria-label="Progress of the deck"></progress>'
    return f'<section class="card" data-live>{facts(steps)}<p>{bar}</p></section>'


def deck(document: Document) -> str:
    """Return the slides."""
    return "".join(_slide(number, one) for number, one in enumerate(document["slides"], start=1))


def links(deck_id: str, found: Sequence[Document]) -> str:
    """Return the public links of a deck, each with its form, and the form of a new one."""
    address = deck_address(deck_id)
    lines = "".join(
        f'<li><form method="post" action="{address}/revoke"><input type="hidden" name="link" value="{text(one["link_id"])}">'
        f"Made {moment(one['created_at'])} <button>Revoke</button></form></li>"
        for one in found
    )
    return (
        f'<section class="card"><h2>Public links</h2>{note(_LINKS)}{f"<ul>{lines}</ul>" if lines else ""}'
        f'<form method="post" action="{address}/links"><button>Make a public link</button></form></section>'
    )


def new_link(address: str) -> str:
    """Return the address of a new link."""
    return card(f'<p><a href="{text(address)}">{text(address)}</a></p>{note("Copy it now: it is not shown again.")}')


def _slide(number: int, slide: Document) -> str:
    bullets = "".join(f"<li>{text(one)}</li>" for one in slide.get("bullets") or ())
    notes = slide.get("notes")
    told = f'<details id="n-{number}"><summary>Notes of slide {number}</summary><p class="said">{text(notes)}</p></details>'
    return (
        f'<section class="card"><h2>{number}. {text(slide["title"])}</h2><ul>{bullets}</ul>{_table(slide.get("table"))}'
        f"{told if notes else ''}</section>"
    )


def _table(table: Document | None) -> str:
    if not table:
        return ""
    head = "".join(f'<th scope="col">{text(cell)}</th>' for cell in table["header"])
    rows = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in table["rows"])
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Table of the slide"><table class="words">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
