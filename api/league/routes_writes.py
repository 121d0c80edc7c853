"""Writes of leagues: each publishes an event first, and answers with its position.

Invariants. A match is named only by its id; its season, which orders its events, is read from PostgreSQL, and an
unknown match is 404. Users vote, predict and comment only for themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from http import HTTPStatus
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict

from highwater.api.core.access import Access, OwnedBy, Scope, access, declared
from highwater.api.core.auth import Role
from highwater.api.core.errors import NotFoundError
from highwater.api.core.guard import Called, GuardedRoute
from highwater.api.core.publishing import Positions
from highwater.api.core.services import Services, Wired
from highwater.connectors.league import read_model as league_api
from highwater.connectors.league.read_model import KnownMatch
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import InvalidEventError
from highwater.streams.checks import check_id, check_name
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.league.resources import SCHEDULE_TOPICS
from highwater.streams.league.validation import NAME_BYTES_MAX

router = APIRouter(tags=["leagues"], route_class=GuardedRoute)
ACCEPTED = HTTPStatus.ACCEPTED
# The dashboard also decides by it whether it shows its button.
FINALIZE = Access(Role.ADMIN, Scope.LEAGUE, limit=RateLimit.CALLER, cost=1, also=Role.ASSISTANT)

MatchId = Annotated[str, Path(description="id of a match")]
SeasonId = Annotated[str, Path(description="id of a season")]
AdId = Annotated[str, Path(description="id of an advertisement")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Goals(_Body):
    home_goals: int
    away_goals: int


class Result(_Goals):
    """The final score after regular time, and after extra time and a penalty shoot-out if there was one; goals are 0 to 999.

    The goals after extra time include those of regular time, the goals of a shoot-out do not count elsewhere.
    """

    home_goals_extra_time: int | None = None
    away_goals_extra_time: int | None = None
    home_penalties: int | None = None
    away_penalties: int | None = None


class Score(_Goals):
    """The current score and minute."""

    minute: int | None = None


class _OfUser(_Body):
    """The user; optional for a key or session that is bound to one."""

    user_id: str | None = None


class Vote(_OfUser):
    """The outcome that a user expects."""

    choice: Literal["home", "draw", "away"]


class Prediction(_OfUser):
    """The result that a user predicts."""

    home_goals: int
    away_goals: int


class Comment(_OfUser):
    """A comment on a match."""

    text: str


class DeclaredDeduction(_Body):
    """Points deducted from a team, 1 to 999, and the reason, which is shown in the table."""

    team: str
    points: int
    reason: str


class DeclaredWithdrawal(_Body):
    """A team whose matches do not count for any team, and the reason, which is shown with the table."""

    team: str
    reason: str


class DeclaredRules(_Body):
    """The rules of a season.

    Teams with equal points are ordered by `tie_breaks` (`goal_difference`, `goals_for`, `won`, `head_to_head_points`,
    `head_to_head_goal_difference`, `head_to_head_goals_for`; without any: goal difference, then goals), then by name.
    Rounds of play-offs and of a second phase count for the table only if `rounds_counted` names them; those in
    `rounds_not_counted` never count.
    """

    deductions: list[DeclaredDeduction] = []
    tie_breaks: list[str] = []
    withdrawn: list[DeclaredWithdrawal] = []
    rounds_counted: list[str] = []
    rounds_not_counted: list[str] = []


class PositionsOfWord(Positions):
    """The log positions of a vote or a prediction, and whether it was in time for the rating (before the known kickoff).

    A later one is shown but does not count, unless the match is moved to a later date.
    """

    in_time: bool
    kickoff: str


async def _match(request: Request, services: Services, match_id: str) -> KnownMatch:
    """Return a match; waits for the positions in `X-Min-Position`, for a match that was just published.

    Raises:
        NotFoundError: there is no such match.
    """
    check_id("match", match_id)
    await services.fresh(request, SCHEDULE_TOPICS)
    match = await league_api.match_of(services.database.require(), match_id)
    if match is None:
        raise NotFoundError(f"there is no match {match_id!r}")
    return match


async def _write(services: Services, topic: str, event: Mapping[str, Any]) -> Positions:
    return Positions(positions=await services.publisher.one(topic, event))


async def _say(request: Request, services: Services, topic: str, event: Mapping[str, Any]) -> PositionsOfWord:
    """Publish a user's vote, prediction or comment on a match now."""
    match = await _match(request, services, event["match_id"])
    now_ms = services.clock()
    positions = await services.publisher.one(topic, {**event, "ts": now_ms})
    return PositionsOfWord(
        positions=positions, in_time=now_ms < match.kickoff_ms, kickoff=iso_from_ms(match.kickoff_ms)
    )


@router.post("/api/matches/{match:id}/finalize", status_code=ACCEPTED, summary="Finalize a match (admin or assistant)")
@declared(FINALIZE)
async def post_result(request: Request, match: MatchId, body: Result, services: Wired) -> Positions:
    """Sets or corrects the final result. Repeating the same result changes nothing."""
    known = await _match(request, services, match)
    event = {"match_id": match, "season": known.season, **body.model_dump(), "finalized_at": services.clock()}
    return await _write(services, "league.match-finalized", event)


@router.post("/api/matches/{match:id}/score", status_code=ACCEPTED, summary="Update the score of a live match")
@access(Role.EDITOR, Scope.LEAGUE, OwnedBy.DEPLOYMENT, also=Role.ASSISTANT, limit=RateLimit.CALLER, cost=1)
async def post_score(request: Request, match: MatchId, body: Score, services: Wired) -> Positions:
    """Sets the current score; a finalized match keeps its result."""
    known = await _match(request, services, match)
    event = {"match_id": match, "season": known.season, **body.model_dump()}
    return await _write(services, "league.match-updated", event)


@router.post("/api/matches/{match:id}/votes", status_code=ACCEPTED, summary="Vote on a match")
@access(Role.EDITOR, Scope.LEAGUE, OwnedBy.USER, own=Role.VIEWER, limit=RateLimit.CALLER, cost=1)
async def post_vote(request: Request, match: MatchId, body: Vote, called: Called, services: Wired) -> PositionsOfWord:
    """The user's last vote counts. It counts for the rating if it was cast before kickoff; see `in_time`."""
    event = {"match_id": match, "user_id": called.user(body.user_id), "choice": body.choice}
    return await _say(request, services, "league.vote-cast", event)


@router.put("/api/predictions/{match:id}", status_code=ACCEPTED, summary="Predict the result of a match")
@access(Role.EDITOR, Scope.LEAGUE, OwnedBy.USER, own=Role.VIEWER, limit=RateLimit.CALLER, cost=1)
async def put_prediction(
    request: Request, match: MatchId, body: Prediction, called: Called, services: Wired
) -> PositionsOfWord:
    """The user's last prediction counts if it was made before kickoff; see `in_time`."""
    event = {**body.model_dump(), "match_id": match, "user_id": called.user(body.user_id)}
    return await _say(request, services, "league.prediction-made", event)


@router.post("/api/matches/{match:id}/comments", status_code=ACCEPTED, summary="Comment on a match")
@access(Role.EDITOR, Scope.LEAGUE, OwnedBy.USER, own=Role.VIEWER, limit=RateLimit.CALLER, cost=1)
async def post_comment(request: Request, match: MatchId, body: Comment, called: Called, services: Wired) -> Positions:
    """Publishes a comment. The latest 120 comments of a match are shown."""
    event = {"match_id": match, "user_id": called.user(body.user_id), "text": body.text}
    await _match(request, services, match)
    return await _write(services, "league.comment-posted", {**event, "ts": services.clock()})


@router.put("/api/league/{season:id}/rules", status_code=ACCEPTED, summary="Declare the rules of a season (admin)")
@access(Role.ADMIN, Scope.LEAGUE, limit=RateLimit.CALLER, cost=1)
async def put_rules(request: Request, season: SeasonId, body: DeclaredRules, services: Wired) -> Positions:
    """Replaces all rules of the season; an empty object restores the default. The table shows declared rules as `rules`."""
    check_name("season", season, NAME_BYTES_MAX)
    await services.fresh(request, SCHEDULE_TOPICS)
    names = await league_api.names_of(services.database.require(), season)
    if names is None:
        raise NotFoundError(f"there is no season {season!r}")
    _check_names("deductions", (deduction.team for deduction in body.deductions), names.teams)
    _check_names("withdrawn", (withdrawal.team for withdrawal in body.withdrawn), names.teams)
    _check_names("rounds_counted", body.rounds_counted, names.rounds)
    _check_names("rounds_not_counted", body.rounds_not_counted, names.rounds)
    return await _write(services, "league.rules-changed", {"season": season, **body.model_dump()})


def _check_names(field: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise InvalidEventError("unknown_name", f"no match of the season names {name[:100]!r}", field=field)


@router.put(
    "/api/ads/{ad:id}",
    status_code=ACCEPTED,
    summary="Create or replace an advertisement (admin)",
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": {}}}}},
)
@access(Role.ADMIN, Scope.LEAGUE, limit=RateLimit.CALLER, cost=1)
async def put_ad(request: Request, ad: AdId, services: Wired) -> Positions:
    """The content is any JSON up to 64 KiB; it is served unchanged."""
    payload = _json_text(await request.body())
    event = {"ad_id": ad, "deleted": False, "payload": payload, "ts": services.clock()}
    return await _write(services, "league.ad-changed", event)


@router.delete("/api/ads/{ad:id}", status_code=ACCEPTED, summary="Delete an advertisement (admin)")
@access(Role.ADMIN, Scope.LEAGUE, limit=RateLimit.CALLER, cost=1)
async def delete_ad(ad: AdId, services: Wired) -> Positions:
    """Deleting an advertisement that does not exist changes nothing."""
    event = {"ad_id": ad, "deleted": True, "payload": "", "ts": services.clock()}
    return await _write(services, "league.ad-changed", event)


def _json_text(body: bytes) -> str:
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidEventError("not_json", f"the body is not JSON: {error}", field="body") from error
    return body.decode("utf-8")  # it was parsed, so it is UTF-8
