"""Shows a match, its comments, and the forms for votes, predictions and comments; pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from highwater.api.readers.frame import DASH, card, facts, moment, note, text
from highwater.api.readers.season_pages import match_address, score, season_address

Document = Mapping[str, Any]

CHOICES = (("home", "Home win"), ("draw", "Draw"), ("away", "Away win"))
COMMENT_CHARACTERS_MAX = 2_000


def title(document: Document) -> str:
    """Return the title of a match's page."""
    meta = document["meta"]
    return f"{meta['home']} {DASH} {meta['away']}"


def is_open(document: Document) -> bool:
    """Return whether a vote or prediction may still count: nothing shows that the match has begun."""
    live = document["live"]
    return document["meta"]["state"] == "scheduled" and (live is None or live["state"] == "scheduled")


def match(document: Document) -> str:
    """Return score, date and votes."""
    meta, live = document["meta"], document["live"]
    shown = meta.get("result") or live or {}
    state = "final" if meta["state"] == "final" else (live or meta)["state"]
    home, away = shown.get("home_goals"), shown.get("away_goals")
    goals = DASH if home is None or away is None else f"{home}:{away}"
    minute = (live or {}).get("minute")
    told = {"final": "Final result", "scheduled": "Not started"}.get(
        state, "Live" if minute is None else f"Live, minute {minute}"
    )
    mark = ' class="live" data-live' if state == "live" else ""
    pairs = [
        ("Score", f'<b class="score">{goals}</b> <span{mark}>{told}</span>'),
        ("Kickoff", moment(meta["kickoff"], has_time=not meta["time_unknown"])),
        ("Round", text(meta["round"])),
        ("Season", f'<a href="{season_address(meta["season"])}">{text(meta["season"])}</a>'),
    ]
    for name, label in (("extra_time", "After extra time"), ("penalties", "Penalties")):
        if name in meta:
            pairs.append((label, score(meta[name])))
    if meta["status"] != "scheduled":
        pairs.append(("Status", text(meta["status"])))
    if live is not None:
        votes = live["votes"]
        pairs.append(("Votes", ", ".join(f"{label} {votes[name]}" for name, label in CHOICES)))
    return card(facts(pairs))


def comments(document: Document) -> str:
    """Return the latest comments, the newest first."""
    found = document["comments"]
    if not found:
        return note("No comment yet.")
    lines = "".join(
        f'<li><b>{text(one["user_id"])}</b> <small>{moment(one["posted_at"])}</small><p class="said">{text(one["text"])}</p></li>'
        for one in found
    )
    return card(f'<ul class="plain">{lines}</ul>')


def user_field(user: str | None, *, is_bound: bool) -> str:
    """Return the field for the user; empty if the reader's key names the user."""
    if is_bound:
        return ""
    return f'<label>User<input name="user" required autocomplete="username" value="{text(user or "")}"></label>'


def stake_forms(match_id: str, user: str | None, *, is_bound: bool) -> str:
    """Return the forms of a vote and of a prediction."""
    address, who = match_address(match_id), user_field(user, is_bound=is_bound)
    choices = "".join(f'<button name="choice" value="{name}">{label}</button>' for name, label in CHOICES)
    goals = "".join(
        f'<label>{label} goals<input type="number" name="{name}" min="0" max="999" inputmode="numeric" required></label>'
        for name, label in (("home_goals", "Home"), ("away_goals", "Away"))
    )
    return (
        f'<section class="card"><h2>Vote</h2><form method="post" action="{address}/votes">{who}'
        f'<fieldset><legend class="note">Who wins?</legend>{choices}</fieldset></form>'
        f'<h2>Predict</h2><form method="post" action="{address}/predictions">{who}{goals}<button>Predict</button>'
        "</form></section>"
    )


def comment_form(match_id: str, user: str | None, *, is_bound: bool) -> str:
    """Return the form of a comment."""
    return (
        f'<section class="card"><h2>Comment</h2><form method="post" action="{match_address(match_id)}/comments">'
        f'{user_field(user, is_bound=is_bound)}<label class="grow">Your comment'
        f'<textarea name="text" required maxlength="{COMMENT_CHARACTERS_MAX}"></textarea></label><button>Comment</button></form>'
        "</section>"
    )
