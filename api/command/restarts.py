"""Restarts failed work in bulk by command: the plan first, and the restart with `--execute`; for jobs and for queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from highwater.api.command.client import any_key, api_client, request
from highwater.api.command.connection import own_settings
from highwater.api.command.terminal import print_json, print_table, say, warn


def restart_options(noun: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the common options of jobs and queries; `noun`: what is restarted, in the plural."""
    options = (
        click.option("--reason", help=f"Only {noun} whose error contains this text, ignoring case."),
        click.option("--user", "user_id", help=f"Only {noun} of this user."),
        click.option("--from", "begin", metavar="TIME", help=f"Only {noun} that failed then or later (ISO 8601)."),
        click.option("--to", "end", metavar="TIME", help=f"Only {noun} that failed before then (ISO 8601)."),
        click.option("--execute", is_flag=True, help="Restart them; without it only the plan is shown."),
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def ask_restarts(path: str, filters: Mapping[str, Any], *, execute: bool) -> dict[str, Any]:
    """Return the plan of a restart, or with `execute` the restarted work; a None is not sent."""
    given = {name: value for name, value in filters.items() if value is not None}
    settings = own_settings()
    with api_client(settings, any_key(settings)) as client:
        how: dict[str, Any] = {"json": given} if execute else {"params": given}
        found: dict[str, Any] = request(client, "POST" if execute else "GET", path, **how).json()
    return found


def show_restarts(
    found: Mapping[str, Any], noun: str, columns: Sequence[str], right: Sequence[str], *, execute: bool, as_json: bool
) -> None:
    """Print a plan, or the restarted work: the reasons, the work with these columns, and its number."""
    if as_json:
        print_json(found)
        return
    if found["reasons"]:
        print_table(("reason", noun), [(one["reason"], one[noun]) for one in found["reasons"]], right=(noun,))
        print_table(("user", noun), [(one["user_id"], one["count"]) for one in found["users"]], right=(noun,))
    if found[noun]:
        print_table(columns, [[work[name] for name in columns] for work in found[noun]], right=right)
    count = len(found[noun])
    if execute:
        say(f"restarted {count:,} of {found['found']:,} failed {noun} that were found")
    else:
        say(f"dry run: {count:,} of {found['found']:,} failed {noun} would be restarted, --execute does it")
    if not found["is_whole"]:
        warn(f"highwater: only the latest failed {noun} were checked; narrow the time with --from and --to")
