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
@json_option
def finalize(match: str, score: str, as_json: bool) -> None:
    """Set or correct the final result of MATCH, as in 2:1; repeating the same result changes nothing."""
    goals = re.fullmatch(r"(\d{1,3}):(\d{1,3})", score, re.ASCII)
    if goals is None:
        raise click.UsageError(f"{score!r} is not HOME:AWAY goals, such as 2:1", click.get_current_context())
    body = {"home_goals": int(goals[1]), "away_goals": int(goals[2])}
    answer = ask_api("POST", f"/api/matches/{path_segment(match, 'MATCH')}/finalize", json=body)
    print_result(answer, as_json=as_json, line=answer["positions"][0])
