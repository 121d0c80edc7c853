"""Shows what is beside a league: the leaderboard, a user's achievements and advertisements; pure functions of the API's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from highwater.api.readers.frame import card, note, table, text, web_link
from highwater.streams.messages import Messages, gettext_noop

Document = Mapping[str, Any]

# What fits beside a table without hiding it; the content of an advertisement may be 64 KiB of any JSON.
ADS_SHOWN_MAX = 5
TITLE_CHARACTERS_MAX, TEXT_CHARACTERS_MAX = 100, 300
_REL = "sponsored nofollow noopener"
_COLUMNS = (
    ("#", gettext_noop("Rank")),
    (gettext_noop("User"), gettext_noop("User")),
    (gettext_noop("Pts"), gettext_noop("Points")),
    (gettext_noop("Exact"), gettext_noop("Exact results")),
    (gettext_noop("Right"), gettext_noop("Correct outcomes")),
    (gettext_noop("Of"), gettext_noop("Predictions of finished matches")),
)
# Names of achievements (`streams/league/ratings.py`).
_ACHIEVEMENTS = (
    gettext_noop("first vote"),
    gettext_noop("10 votes"),
    gettext_noop("100 votes"),
    gettext_noop("first prediction"),
    gettext_noop("10 predictions"),
    gettext_noop("first correct outcome"),
    gettext_noop("10 correct outcomes"),
    gettext_noop("100 correct outcomes"),
    gettext_noop("first exact result"),
    gettext_noop("10 exact results"),
)
_FIGURES = ("exact", "correct", "judged")


def leaderboard_address(page: int) -> str:
    """Return the address of a page of the rating."""
    return f"/read?rating={page}#leaderboard"


def leaderboard(document: Document, messages: Messages) -> str:
    """Return a page of the rating, with links to the pages before and after it."""
    page, after = document["page"], document["next_cursor"]
    rows = [
        [str(row["rank"]), text(row["user_id"]), f"<b>{row['points']}</b>", *(str(row[name]) for name in _FIGURES)]
        for row in document["users"]
    ]
    heads = [(messages.gettext(short), messages.gettext(full)) for short, full in _COLUMNS]
    if rows:
        shown = table(messages.gettext("Users by points"), heads, rows)
    else:
        shown = note(messages.gettext("No prediction is rated yet."))
    links = [(page - 1, messages.gettext("Previous page"))] if page > 1 else []
    links += [(int(after), messages.gettext("Next page"))] if after else []
    others = " · ".join(f'<a href="{leaderboard_address(number)}">{words}</a>' for number, words in links)
    return f"<h2>{messages.gettext('Leaderboard')}</h2>{shown}" + (f"<p>{others}</p>" if others else "")


def achievements(document: Document, messages: Messages) -> str:
    """Return a user's achievements, and the progress towards the others."""
    lines = "".join(_achievement(one, messages) for one in document["achievements"])
    title = messages.gettext("Achievements of {user}", user=document["user_id"])
    return f"<h2>{text(title)}</h2>{_list(lines)}"


def _achievement(one: Document, messages: Messages) -> str:
    name = messages.known(one["name"], _ACHIEVEMENTS)
    done = messages.gettext("{done} of {total}", done=min(one["count"], one["needed"]), total=one["needed"])
    reached = f" <b class=new>{messages.gettext('Reached')}</b>" if one["reached"] else ""
    return f"<li>{text(name.capitalize())} <small>{done}</small>{reached}</li>"


def advertisements(document: Document, messages: Messages) -> str:
    """Return the first advertisements that have a title or a text; empty if none has.

    A document that is nested too deeply to be parsed shows none.
    """
    found = [shown for one in document.get("ads", ()) if (shown := _advertisement(one["payload"]))]
    lines = "".join(f"<li>{one}</li>" for one in found[:ADS_SHOWN_MAX])
    return f"<h2>{messages.gettext('Advertisements')}</h2>{_list(lines)}" if lines else ""


def _list(lines: str) -> str:
    return card(f'<ul class="plain">{lines}</ul>')


def _advertisement(payload: object) -> str:
    """Return an advertisement by the members `title`, `text` and `url` of its content; empty if it has no words."""
    content = payload if isinstance(payload, Mapping) else {}
    title, words = _words(content.get("title"), TITLE_CHARACTERS_MAX), _words(content.get("text"), TEXT_CHARACTERS_MAX)
    head = title or words
    if not head:
        return ""
    linked = web_link(content.get("url"), head, _REL) or f"<b>{text(head)}</b>"
    return linked + (f'<p class="said">{text(words)}</p>' if title and words else "")


def _words(value: object, characters_max: int) -> str:
    return value.strip()[:characters_max] if isinstance(value, str) else ""
