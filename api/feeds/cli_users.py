"""`highwater users`: shows what waits for a user's next rebuild, requests a rebuild, and erases a user, by the running API."""

from __future__ import annotations

from urllib.parse import quote

import click

from highwater.api.command.client import ask_api
from highwater.api.command.command import Group, json_option
from highwater.api.command.terminal import print_json, print_result, print_table


@click.group(cls=Group)
def users() -> None:
    """Show what waits for a user, rebuild a user's clusters, erase a user."""


@users.command()
@click.argument("user")
@json_option
def pending(user: str, as_json: bool) -> None:
    """Show what waits for the next rebuild of USER, and why nothing is rebuilt yet."""
    document = ask_api("GET", f"{_path(user)}/pending")
    if as_json:
        print_json(document)
    else:
        print_table(("", ""), [(name, value) for name, value in document.items() if isinstance(value, str | int)])
        waiting = [(channel, count) for channel, count in document["by_channel"].items() if count]
        if waiting:
            click.echo()
            print_table(("channel", "pending"), waiting, right=("pending",))


@users.command()
@click.argument("user")
@click.option("--if-new", is_flag=True, help="Rebuild only if USER would see a change.")
@click.option("--force", is_flag=True, help="Override --if-new; rebuild also if only the model is newer.")
@json_option
def rebuild(user: str, if_new: bool, force: bool, as_json: bool) -> None:
    """Request a rebuild of the clusters of USER, and print its position."""
    asked = {"if_new": if_new, "force": force}
    answer = ask_api("POST", f"{_path(user)}/rebuild", params=asked)
    print_result(answer, as_json=as_json, line=answer["positions"][0])


@users.command()
@click.argument("user")
@click.option("--confirm", required=True, metavar="USER", help="The same user again; erased data cannot be recovered.")
@json_option
def erase(user: str, confirm: str, as_json: bool) -> None:
    """Delete all data of USER, and print the position of the erasure."""
    if confirm != user:
        raise click.UsageError(f"--confirm {confirm!r} is not {user!r}", click.get_current_context())
    answer = ask_api("DELETE", f"{_path(user)}/data")
    print_result(answer, as_json=as_json, line=answer["positions"][0])


def _path(user: str) -> str:
    return f"/api/users/{quote(user, safe='')}"
