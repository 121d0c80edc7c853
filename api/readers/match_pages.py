"""Shows a match, its comments, and the forms for votes, predictions and comments; pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from highwater.api.readers.frame import DASH, card, facts, moment, note, text
from highwater.api.readers.season_pages import STATUSES, in_play, match_address, score, season_address
from highwater.streams.messages import Messages, gettext_noop

Document = Mapping[str, Any]

CHOICES = (("home", gettext_noop("Home win")), ("draw", gettext_noop("Draw")), ("away", gettext_noop("Away win")))
_FURTHER = (("extra_time", gettext_noop("After extra time")), ("penalties", gettext_noop("Penalties")))
_GOALS = (("home_goals", gettext_noop("Home goals")), ("away_goals", gettext_noop("Away goals")))
COMMENT_CHARACTERS_MAX = 2_000


def title(document: Document) -> str:
    """Return the title of a match's page."""
    meta = document["meta"]
    return f"{meta['home']} {DASH} {meta['away']}"


def is_open(document: Document) -> bool:
    """Return whether a vote or prediction may still count: nothing shows that the match has begun."""
    live = document["live"]
    return document["meta"]["state"] == "scheduled" and (live is None or live["state"] == "scheduled")


def match(document: Document, messages: Messages) -> str:
    """Return score, date and votes."""
    meta, live = document["meta"], document["live"]
    shown = meta.get("result") or live or {}
    state = "final" if meta["state"] == "final" else (live or meta)["state"]
    home, away = shown.get("home_goals"), shown.get("away_goals")
    goals = DASH if home is None or away is None else f"{home}:{away}"
    if state == "final":
        told = messages.gettext("Final result")
    elif state == "scheduled":
        told = messages.gettext("Not started")
    else:
        told = in_play((live or {}).get("minute"), messages)
    mark = ' class="live" data-live' if state == "live" else ""
    pairs = [
        (messages.gettext("Score"), f'<b class="score">{goals}</b> <span{mark}>{told}</span>'),
        (messages.gettext("Kickoff"), moment(meta["kickoff"], messages, has_time=not meta["time_unknown"])),
        (messages.gettext("Round"), text(meta["round"])),
        (messages.gettext("Season"), f'<a href="{season_address(meta["season"])}">{text(meta["season"])}</a>'),
    ]
    for name, label in _FURTHER:
        if name in meta:
            pairs.append((messages.gettext(label), score(meta[name])))
    if meta["status"] != "scheduled":
        pairs.append((messages.gettext("Status"), text(messages.known(meta["status"], STATUSES))))
    if live is not None:
        votes = live["votes"]
        counts = (f"{messages.gettext(label)} {votes[name]}" for name, label in CHOICES)
        pairs.append((messages.gettext("Votes"), ", ".join(counts)))
    return card(facts(pairs))


def comments(document: Document, messages: Messages) -> str:
    """Return the latest comments, the newest first."""
    found = document["comments"]
    if not found:
        return note(messages.gettext("No comment yet."))
    lines = "".join(
        f"<li><b>{text(one['user_id'])}</b> <small>{moment(one['posted_at'], messages)}</small>"
        f'<p class="said">{text(one["text"])}</p></li>'
        for one in found
    )
    return card(f'<ul class="plain">{lines}</ul>')


def user_field(user: str | None, messages: Messages, *, is_bound: bool) -> str:
    """Return the field for the user; empty if the reader's key names the user."""
    if is_bound:
        return ""
    named = messages.gettext("User")
    return f'<label>{named}<input name="user" required autocomplete="username" value="{text(user or "")}"></label>'


def stake_forms(match_id: str, user: str | None, messages: Messages, *, is_bound: bool) -> str:
    """Return the forms of a vote and of a prediction."""
    address, who = match_address(match_id), user_field(user, messages, is_bound=is_bound)
    choices = "".join(
        f'<button name="choice" value="{name}">{messages.gettext(label)}</button>' for name, label in CHOICES
    )
    goals = "".join(
        f'<label>{messages.gettext(label)}<input type="number" name="{name}" min="0" max="999" '
        'inputmode="numeric" required></label>'
        for name, label in _GOALS
    )
    vote, predict = messages.pgettext("to vote", "Vote"), messages.pgettext("to predict", "Predict")
    return (
        f'<section class="card"><h2>{vote}</h2><form method="post" action="{address}/votes">{who}'
        f'<fieldset><legend class="note">{messages.gettext("Who wins?")}</legend>{choices}</fieldset></form>'
        f'<h2>{predict}</h2><form method="post" action="{address}/predictions">{who}{goals}<button>{predict}</button>'
        "</form></section>"
    )


def comment_form(match_id: str, user: str | None, messages: Messages, *, is_bound: bool) -> str:
    """Return the form of a comment."""
    comment = messages.pgettext("to comment", "Comment")
    return (
        f'<section class="card"><h2>{comment}</h2><form method="post" action="{match_address(match_id)}/comments">'
        f'{user_field(user, messages, is_bound=is_bound)}<label class="grow">{messages.gettext("Your comment")}'
        f'<textarea name="text" required maxlength="{COMMENT_CHARACTERS_MAX}"></textarea></label>'
        f"<button>{comment}</button></form></section>"
    )
