"""`highwater capacity`: which part of a deployment reaches its limit first, at each power of ten of load, and what
replaces it.
"""

from __future__ import annotations

from typing import Any

import click

from highwater.api.command.command import Command, json_option
from highwater.api.command.terminal import print_json, print_table, say


@click.command(cls=Command)
@click.option("--users", type=click.IntRange(1, 10**9), required=True, help="Registered users.")
@click.option("--channels", type=click.IntRange(1, 10**9), required=True, help="Channels.")
@click.option("--insights-per-day", type=click.IntRange(1, 10**12), required=True, help="Insights published in a day.")
@json_option
def capacity(users: int, channels: int, insights_per_day: int, as_json: bool) -> None:
    """Estimate which component reaches its limit first, up to 100 million users, from measured constants."""
    from highwater.streams.capacity import Load, reach, steps

    load = Load(users, channels, insights_per_day)
    found = steps(load)
    if as_json:
        print_json({"reach_users": reach(load), "steps": [_document(step) for step in found]})
        return
    rows = []
    for step in found:
        worst = step.parts[0]
        rows.append((f"{step.load.users:,}", f"{step.load.insights_per_day:,}", worst.name, f"{worst.share:.0%}"))
    print_table(
        ["users", "insights a day", "fullest component", "of its limit"],
        rows,
        right=["users", "insights a day", "of its limit"],
    )
    say(f"In these proportions no component exceeds 70 % of its limit up to {reach(load):,} users.")
    told: set[str] = set()
    for step in found:
        for part in step.breaks:
            if part.name not in told:
                told.add(part.name)
                say(f"{part.name} breaks before {step.load.users:,} users ({part.reason}): {part.following}.")


def _document(step: Any) -> dict[str, Any]:
    load = step.load
    return {
        "users": load.users,
        "channels": load.channels,
        "insights_per_day": load.insights_per_day,
        "breaks": [part.name for part in step.breaks],
        "parts": [
            {
                "name": part.name, "demand": part.demand, "limit": part.limit, "unit": part.unit, "share": part.share,
                "reason": part.reason, "following": part.following,
            }
            for part in step.parts
        ],
    }  # fmt: skip
