"""Serves the league pages: the first page, a season's tabs, and a match with votes, predictions and comments."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.responses import RedirectResponse, Response

from highwater.api.core.errors import NotFoundError, UnauthorizedError
from highwater.api.league import routes_writes
from highwater.api.readers import match_pages, season_pages, start_pages
from highwater.api.readers.frame import note, problem_note, refusal, segment, text
from highwater.api.readers.inside import Answer, Visit
from highwater.api.readers.pages import form, number, page, positions_seen
from highwater.api.readers.parts import Part, in_language, serve_part, show
from highwater.api.readers.pushes import socket_for
from highwater.api.readers.season_pages import TABS, match_address, season_address
from highwater.streams.messages import gettext_noop

_SEE_OTHER = 303
_SHOW = {
    "table": season_pages.standings,
    "schedule": season_pages.schedule,
    "results": season_pages.results,
    "stats": season_pages.stats,
    "bracket": season_pages.bracket,
}
# On every page of leagues, at its end.
_ADS = Part("/read?part=ads", "/api/ads", start_pages.advertisements, ("ads:all",), "ads")
# The API has fewer pages of the rating.
_PAGE_DIGITS_MAX = 5
# The action of a reader, by the word in the redirect address.
_DONE = {
    "vote": gettext_noop("Your vote was saved. The votes below include it within a few seconds."),
    "prediction": gettext_noop("Your prediction was saved."),
    "late": gettext_noop("It was saved, but the match has begun: it does not count for the rating."),
    "comment": gettext_noop("Your comment was published."),
}


# -- seasons
# ----------------------------------------------------------------------------------------------------------------


async def seasons(visit: Visit) -> Response:
    """Show every season, all matches in play, the leaderboard, the reader's achievements and advertisements.

    Raises:
        UnauthorizedError: a part of a signed-in reader is requested without a key.
        NotFoundError: there is no such part.
    """
    asked = visit.request.query_params
    parts = _start_parts(visit)
    if "part" in asked:
        part = parts.get(asked["part"])
        if part is None and visit.is_anonymous:
            raise UnauthorizedError("sign in first")
        if part is None:
            raise NotFoundError(f"this page has no part {asked['part'][:50]!r}; it has {', '.join(parts)}")
        return await serve_part(visit, part)
    cursor = asked.get("cursor")
    more = f"?{urlencode({'cursor': cursor})}" if cursor else ""
    listed, shown = await asyncio.gather(
        visit.ask("GET", f"/api/league{more}"), asyncio.gather(*(show(visit, part) for part in parts.values()))
    )
    is_listed = listed.status == 200
    found = season_pages.season_list(listed.document, visit.messages) if is_listed else problem_note(listed.detail)
    playing, *others = (one.html for one in shown)
    title = visit.messages.gettext("Leagues")
    body = f"<h1>{title}</h1>{playing}{found}{''.join(others)}"
    return page(visit, title, body, status=listed.status, changes=socket_for(visit))


def _start_parts(visit: Visit) -> dict[str, Part]:
    """Return the parts of the first page by their names: matches in play first, advertisements last."""
    rating = visit.request.query_params.get("rating", "")
    number_of_page = int(rating) if rating.isascii() and rating.isdigit() and len(rating) <= _PAGE_DIGITS_MAX else 1
    parts = {
        "live": Part("/read?part=live", "/api/matches/live", season_pages.live, ("public:matches:live",)),
        "leaderboard": Part(
            f"/read?part=leaderboard&rating={number_of_page}",
            f"/api/leaderboard?page={number_of_page}",
            start_pages.leaderboard,
            (f"lb:{number_of_page}",),
            "leaderboard",
        ),
    }
    user = visit.user
    if user is not None and not visit.is_anonymous:
        named = "" if visit.is_bound else f"&{urlencode({'user': user})}"
        source = f"/api/users/{segment(user)}/achievements"
        address, keys = f"/read?part=achievements{named}", (f"achievements:{user}",)
        parts["achievements"] = Part(address, source, start_pages.achievements, keys)
    return {**parts, "ads": _ADS}


def _tab_part(season: str, tab: str) -> Part:
    key = next(key for name, _, key in TABS if name == tab)
    source = f"/api/league/{segment(season)}/{tab}"
    return Part(f"{season_address(season, tab)}?part=1", source, _SHOW[tab], (f"{key}{season}",), "tab")


def _live_part(season: str) -> Part:
    source, key = f"/api/league/{segment(season)}/stats/live", f"{season_pages.LIVE_KEY}{season}"
    return Part(f"{season_address(season, 'live')}?part=1", source, season_pages.live, (key,), "live")


async def season(visit: Visit) -> Response:
    """Show one tab of a season; only this one is loaded (R4.39).

    Raises:
        NotFoundError: the tab does not exist.
    """
    named, tab = visit.named["season"], visit.named.get("tab", TABS[0][0])
    if tab == "live" and "part" in visit.request.query_params:
        return await serve_part(visit, _live_part(named))
    if tab not in _SHOW:
        raise NotFoundError(f"a season has no page {tab[:50]!r}; it has {', '.join(_SHOW)}")
    if "part" in visit.request.query_params:
        return await serve_part(visit, _tab_part(named, tab))
    shown, live, ads = await asyncio.gather(
        *(show(visit, part) for part in (_tab_part(named, tab), _live_part(named), _ADS))
    )
    if shown.answer.status not in (200, 202):
        said = problem_note(shown.answer.detail)
        return page(visit, named, f"<h1>{text(named)}</h1>{said}", status=shown.answer.status)
    body = f"<h1>{text(named)}</h1>{live.html}{_tabs(visit, named, tab)}{shown.html}{ads.html}"
    label = next(visit.messages.gettext(label) for name, label, _ in TABS if name == tab)
    return page(visit, f"{label} · {named}", body, changes=socket_for(visit))


def _tabs(visit: Visit, named: str, tab: str) -> str:
    messages = visit.messages
    tabs = ((name, messages.gettext(label), key, season_address(named, name)) for name, label, key in TABS)
    links = "".join(
        f'<a href="{address}" data-tab="{text(in_language(f"{address}?part=1", messages))}" '
        f'data-keys="{text(key + named)}" data-title="{text(f"{label} · {named} · Highwater")}"'
        f"{' aria-current=page' if name == tab else ''}>{label}</a>"
        for name, label, key, address in tabs
    )
    return f'<nav class="tabs" aria-label="{messages.gettext("Season")}">{links}</nav>'


# -- a match
# ----------------------------------------------------------------------------------------------------------------


def _match_part(match_id: str) -> Part:
    source = f"/api/matches/{segment(match_id)}"
    keys = (f"md:{match_id}:meta", f"md:{match_id}:live")
    return Part(f"{match_address(match_id)}?part=match", source, match_pages.match, keys)


def _comments_part(match_id: str) -> Part:
    source = f"/api/matches/{segment(match_id)}/comments"
    return Part(f"{match_address(match_id)}?part=comments", source, match_pages.comments, (f"md:{match_id}:comments",))


async def match(visit: Visit) -> Response:
    """Show a match, its comments, and the forms for the reader."""
    part = visit.request.query_params.get("part")
    if part == "match":
        return await serve_part(visit, _match_part(visit.named["match"]))
    if part == "comments":
        return await serve_part(visit, _comments_part(visit.named["match"]))
    done = visit.request.query_params.get("done", "")
    told = f'<p class="done" role="status">{visit.messages.gettext(_DONE[done])}</p>' if done in _DONE else ""
    return await _match_page(visit, told)


async def _match_page(visit: Visit, message: str, *, status: int = 200) -> Response:
    match_id, asked = visit.named["match"], visit.request.query_params
    after = positions_seen(visit)
    # Votes are gathered for seconds before they are counted (R4.33): a page does not wait for them. Comments are stored
    # at once.
    shown, ads, comments = await asyncio.gather(
        show(visit, _match_part(match_id)),
        show(visit, _ADS),
        show(visit, _comments_part(match_id), after=after if asked.get("done") == "comment" else ""),
    )
    if shown.answer.status != 200:
        title = visit.messages.gettext("Match")
        said = problem_note(shown.answer.detail)
        return page(visit, title, f"<h1>{title}</h1>{said}", status=shown.answer.status)
    document = shown.answer.document
    title = match_pages.title(document)
    body = f"<h1>{text(title)}</h1>{message}{shown.html}{_stakes(visit, match_id, document)}"
    heading = f"<h2>{visit.messages.gettext('Comments')}</h2>"
    body = f"{body}{heading}{comments.html}{_comment(visit, match_id)}{ads.html}"
    return page(visit, title, body, status=status, changes=socket_for(visit))


def _stakes(visit: Visit, match_id: str, document: Mapping[str, Any]) -> str:
    if not match_pages.is_open(document):
        return ""
    if not visit.may(routes_writes.post_vote):
        return note(visit.messages.gettext("To vote and predict, sign in with a key of your own user."))
    return match_pages.stake_forms(match_id, visit.user, visit.messages, is_bound=visit.is_bound)


def _comment(visit: Visit, match_id: str) -> str:
    if not visit.may(routes_writes.post_comment):
        return note(visit.messages.gettext("To comment, sign in with a key of your own user."))
    return match_pages.comment_form(match_id, visit.user, visit.messages, is_bound=visit.is_bound)


async def vote(visit: Visit) -> Response:
    """Submit a vote."""
    sent = await form(visit)
    return await _say(visit, sent, "vote", "POST", "/api/matches/{}/votes", {"choice": sent.get("choice", "")})


async def prediction(visit: Visit) -> Response:
    """Submit a prediction."""
    sent = await form(visit)
    goals = {name: number(sent.get(name, "")) for name in ("home_goals", "away_goals")}
    return await _say(visit, sent, "prediction", "PUT", "/api/predictions/{}", goals)


async def comment(visit: Visit) -> Response:
    """Submit a comment."""
    sent = await form(visit)
    # Browsers send line breaks of a form as CR LF.
    words = sent.get("text", "").replace("\r\n", "\n")
    return await _say(visit, sent, "comment", "POST", "/api/matches/{}/comments", {"text": words})


async def _say(
    visit: Visit, sent: Mapping[str, str], word: str, method: str, path: str, body: Mapping[str, Any]
) -> Response:
    """Write, then redirect to the page after the change; an error is shown on the page."""
    match_id = visit.named["match"]
    user = {} if visit.is_bound else {"user_id": sent.get("user", "")}
    answer = await visit.ask(method, path.format(segment(match_id)), body={**body, **user})
    if answer.status != 202:
        return await _match_page(visit, refusal(answer.detail), status=answer.status)
    query = {"done": _word(word, answer), "after": ",".join(answer.document["positions"])}
    if user:
        query["user"] = user["user_id"]
    return RedirectResponse(f"{match_address(match_id)}?{urlencode(query)}", _SEE_OTHER)


def _word(word: str, answer: Answer) -> str:
    return "late" if answer.document.get("in_time") is False else word
