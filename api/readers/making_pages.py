"""Shows requested results: the answer to a question, the progress of a deck, and its slides; pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from highwater.api.readers.frame import card, facts, moment, note, segment, text
from highwater.streams.languages import ENGLISH
from highwater.streams.messages import Messages, gettext_noop

Document = Mapping[str, Any]

_ENDED = {
    "failed": gettext_noop("The deck could not be made."),
    "revoked": gettext_noop("The deck was cancelled."),
    "expired": gettext_noop("The deck was not made in time."),
}
_STATUSES = {"pending": gettext_noop("Pending"), "running": gettext_noop("Running")}
# States of a question that is being answered.
_STATES = (
    gettext_noop("NEW"),
    gettext_noop("ANALYZING"),
    gettext_noop("ANALYZED"),
    gettext_noop("ASSEMBLING"),
    gettext_noop("READY"),
    gettext_noop("RESPONDING"),
)


def question_address(request_id: str) -> str:
    """Return the address of a question's page."""
    return f"/read/questions/{segment(request_id)}"


def job_address(job_id: str) -> str:
    """Return the address of the page on a deck's progress."""
    return f"/read/jobs/{segment(job_id)}"


def deck_address(deck_id: str) -> str:
    """Return the address of a deck's page."""
    return f"/read/decks/{segment(deck_id)}"


def answer(document: Document, messages: Messages) -> str:
    """Return the answer with its sources, or its progress."""
    if document["status"] == "completed":
        return (
            f'<section class="card"><h2>{messages.gettext("Answer")}</h2><p class="said">{text(document["answer"])}</p>'
            f"</section>{_sources(document.get('sources') or (), messages)}"
        )
    if document["status"] == "failed":
        error = f'<span lang="{ENGLISH}">{text(document["error"])}</span>'
        failed = messages.gettext("The question could not be answered: {error}", error=error)
        return f'<p class="wrong" role="alert">{failed}</p>'
    state = text(messages.known(document["state"], _STATES))
    answering = messages.gettext("Your question is being answered ({state}). The answer appears here.", state=state)
    return card(f"<p data-live>{answering}</p>")


def _sources(found: Any, messages: Messages) -> str:
    if not found:
        return ""
    lines = "".join(f"<li>{_source(one, messages)}</li>" for one in found)
    return f'<section class="card"><h2>{messages.gettext("Sources")}</h2><ol>{lines}</ol></section>'


def _source(one: Document, messages: Messages) -> str:
    where = " · ".join(text(one[name]) for name in ("document", "heading", "channel_id") if one.get(name))
    at = moment(one.get("ts"), messages)
    said = one.get("text") or one.get("insight_id") or one.get("chunk_id") or ""
    return (
        f'<span class="said">{text(said)}</span><br><small>{" · ".join(part for part in (where, at) if part)}</small>'
    )


def job(document: Document, messages: Messages) -> str:
    """Return the progress of a deck."""
    status = document["status"]
    if status == "completed":
        deck = (document["result"] or {}).get("presentation_id")
        if deck is None:
            ready = note(messages.gettext("There is no deck."))
        else:
            ready = f'<p><a href="{deck_address(deck)}">{messages.gettext("Open the deck")}</a></p>'
        return card(f'<p class="done">{messages.gettext("The deck is ready.")}</p>{ready}')
    if status in _ENDED:
        told = f' <span lang="{ENGLISH}">{text(document["error"])}</span>' if document["error"] else ""
        return f'<p class="wrong" role="alert">{messages.gettext(_ENDED[status])}{told}</p>'
    done, total = document["steps_done"] or 0, document["steps_total"]
    if total:
        counted = messages.gettext("{done} of {total}", done=done, total=total)
    else:
        counted = messages.gettext("{done} of some", done=done)
    shown = messages.gettext(_STATUSES[status]) if status in _STATUSES else status.capitalize()
    steps = [(messages.gettext("Status"), text(shown)), (messages.gettext("Steps"), counted)]
    value = f' value="{document["progress_pct"] or 0}"'
    bar = f'<progress max="100"{value} aria-label="{messages.gettext("Progress of the deck")}"></progress>'
    return f'<section class="card" data-live>{facts(steps)}<p>{bar}</p></section>'


def deck(document: Document, messages: Messages) -> str:
    """Return the slides."""
    return "".join(_slide(number, one, messages) for number, one in enumerate(document["slides"], start=1))


def links(deck_id: str, found: Sequence[Document], messages: Messages) -> str:
    """Return the public links of a deck, each with its form, and the form of a new one."""
    address = deck_address(deck_id)
    lines = "".join(
        f'<li><form method="post" action="{address}/revoke"><input type="hidden" name="link" value="{text(one["link_id"])}">'
        f"{messages.gettext('Made {time}', time=moment(one['created_at'], messages))} "
        f"<button>{messages.gettext('Revoke')}</button></form></li>"
        for one in found
    )
    about = messages.gettext("Anybody who has a public link sees the slides without a key, until the link is revoked.")
    return (
        f'<section class="card"><h2>{messages.gettext("Public links")}</h2>{note(about)}'
        f'{f"<ul>{lines}</ul>" if lines else ""}<form method="post" action="{address}/links">'
        f"<button>{messages.gettext('Make a public link')}</button></form></section>"
    )


def new_link(address: str, messages: Messages) -> str:
    """Return the address of a new link."""
    copy = note(messages.gettext("Copy it now: it is not shown again."))
    return card(f'<p><a href="{text(address)}">{text(address)}</a></p>{copy}')


def _slide(number: int, slide: Document, messages: Messages) -> str:
    bullets = "".join(f"<li>{text(one)}</li>" for one in slide.get("bullets") or ())
    notes = slide.get("notes")
    summary = messages.gettext("Notes of slide {number}", number=number)
    table = _table(slide.get("table"), messages)
    told = f'<details id="n-{number}"><summary>{summary}</summary><p class="said">{text(notes)}</p></details>'
    return (
        f'<section class="card"><h2>{number}. {text(slide["title"])}</h2><ul>{bullets}</ul>{table}'
        f"{told if notes else ''}</section>"
    )


def _table(table: Document | None, messages: Messages) -> str:
    if not table:
        return ""
    head = "".join(f'<th scope="col">{text(cell)}</th>' for cell in table["header"])
    rows = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in table["rows"])
    label = messages.gettext("Table of the slide")
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{label}"><table class="words">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
