"""`highwater doctor`: checks every service and prints the remedy for each failed check."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import click

from highwater.api.cli.checks import BAD, Check
from highwater.api.command.command import FAILED, Command, json_option
from highwater.api.command.connection import own_settings, stack_settings
from highwater.api.command.terminal import print_json, print_table, say
from highwater.streams.settings import Settings


@click.command(cls=Command)
@click.option("--settings", "show_settings", is_flag=True, help="Print every setting with its value; secrets hidden.")
@json_option
def doctor(show_settings: bool, as_json: bool) -> None:
    """Check this machine and every service; exit status 1 if a check fails."""
    if show_settings:
        _print_settings(own_settings(), as_json=as_json)
        return
    from highwater.api.cli import checks

    found = asyncio.run(checks.check_all(stack_settings()))
    if as_json:
        print_json([dataclasses.asdict(check) for check in found])
    else:
        _print_checks(found)
    if any(check.state == BAD for check in found):
        click.get_current_context().exit(FAILED)


def _print_checks(found: list[Check]) -> None:
    print_table(["", "check", "found"], [(check.state, check.name, check.detail) for check in found])
    for check in found:
        if check.remedy:
            say(f"{check.name}: {check.remedy}")


def settings_rows(settings: Settings) -> list[dict[str, Any]]:
    """Return every setting: its name in the environment, its value as text (None = unset), and its purpose."""
    rows = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        shown = None if value is None else "(hidden)" if field.metadata["secret"] else str(value)
        changed = value != field.default
        rows.append({"name": field.metadata["name"], "value": shown, "set": changed, "about": field.metadata["about"]})
    return rows


def _print_settings(settings: Settings, *, as_json: bool) -> None:
    rows = settings_rows(settings)
    if as_json:
        print_json(rows)
        return
    print_table(
        ["setting", "value", "", "for"],
        [(r["name"], r["value"] or "-", "set" if r["set"] else "", r["about"]) for r in rows],
    )
