"""Shows what is beside a league: the leaderboard, a user's achievements and advertisements; pure functions of the API's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from highwater.api.readers.frame import card, note, table, text, web_link

Document = Mapping[str, Any]

# What fits beside a table without hiding it; the content of an advertisement may be 64 KiB of any JSON.
ADS_SHOWN_MAX = 5
TITLE_CHARACTERS_MAX, TEXT_CHARACTERS_MAX = 100, 300
_REL = "sponsored nofollow noopener"
_COLUMNS = (
    ("#", "Rank"), ("User", "User"), ("Pts", "Points"), ("Exact", "Exact results"), ("Right", "Correct outcomes"),
    ("Of", "Predictions of finished matches"),
)  # fmt: skip
_FIGURES = ("exact", "correct", "judged")


def leaderboard_address(page: int) -> str:
    """Return the address of a page of the rating."""
    return f"/read?rating={page}#leaderboard"


def leaderboard(document: Document) -> str:
    """Return a page of the rating, with links to the pages before and after it."""
    page, after = document["page"], document["next_cursor"]
    rows = [
        [str(row["rank"]), text(row["user_id"]), f"<b>{row['points']}</b>", *(str(row[name]) for name in _FIGURES)]
        for row in document["users"]
    ]
    shown = table("Users by points", _COLUMNS, rows) if rows else note("No prediction is rated yet.")
    links = [(page - 1, "Previous page")] if page > 1 else []
    links += [(int(after), "Next page")] if after else []
    others = " · ".join(f'<a href="{leaderboard_address(number)}">{words}</a>' for number, words in links)
    return f"<h2>Leaderboard</h2>{shown}" + (f"<p>{others}</p>" if others else "")


def achievements(document: Document) -> str:
    """Return a user's achievements, and the progress towards the others."""
    lines = "".join(
        f"<li>{text(one['name'].capitalize())} <small>{min(one['count'], one['needed'])} of {one['needed']}</small>"
        f"{' <b class=new>Reached</b>' if one['reached'] else ''}</li>"
        for one in document["achievements"]
    )
    return f"<h2>Achievements of {text(document['user_id'])}</h2>{_list(lines)}"


def advertisements(document: Document) -> str:
    """Return the first advertisements that have a title or a text; empty if none has.

    A document that is nested too deeply to be parsed shows none.
    """
    found = [shown for one in document.get("ads", ()) if (shown := _advertisement(one["payload"]))]
    lines = "".join(f"<li>{one}</li>" for one in found[:ADS_SHOWN_MAX])
    return f"<h2>Advertisements</h2>{_list(lines)}" if lines else ""


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
