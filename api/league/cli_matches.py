"""`highwater matches`: sets the result of a match, by the running API."""

from __future__ import annotations

import re

import click

from highwater.api.command.client import ask_api, path_segment
from highwater.api.command.command import Group, json_option
from highwater.api.command.terminal import print_result


@click.group(cls=Group)
def matches() -> None:
    """Set or correct the final result of a match."""


@matches.command()
@click.argument("match")
@click.argument("score", metavar="HOME:AWAY")
@click.option("--extra-time", metavar="HOME:AWAY", help="Goals after extra time, including those before.")
@click.option("--penalties", metavar="HOME:AWAY", help="Goals of the penalty shoot-out alone.")
@json_option
def finalize(match: str, score: str, extra_time: str | None, penalties: str | None, as_json: bool) -> None:
    """Set or correct the final result of MATCH after regular time, as in 2:1; repeating the same result changes nothing."""
    body = _goals(score, "home_goals", "away_goals")
    if extra_time is not None:
        body |= _goals(extra_time, "home_goals_extra_time", "away_goals_extra_time")
    if penalties is not None:
        body |= _goals(penalties, "home_penalties", "away_penalties")
    answer = ask_api("POST", f"/api/matches/{path_segment(match, 'MATCH')}/finalize", json=body)
    print_result(answer, as_json=as_json, line=answer["positions"][0])


def _goals(score: str, home: str, away: str) -> dict[str, int]:
    goals = re.fullmatch(r"(\d{1,3}):(\d{1,3})", score, re.ASCII)
    if goals is None:
        raise click.UsageError(f"{score!r} is not HOME:AWAY goals, such as 2:1", click.get_current_context())
    return {home: int(goals[1]), away: int(goals[2])}
