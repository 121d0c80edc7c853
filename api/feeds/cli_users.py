"""`highwater users`: a user's subscriptions, plan, pending insights, rebuild and erasure, by the running API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from highwater.api.command.client import ask_api, ask_pages, path_segment
from highwater.api.command.command import Group, json_option
from highwater.api.command.terminal import print_json, print_result, print_table, say
from highwater.streams.printable import printable
from highwater.streams.wording import counted


@click.group(cls=Group)
def users() -> None:
    """Subscribe a user, show what waits for a user, rebuild a user's clusters, erase a user."""


@users.command()
@click.argument("user")
@click.argument("channels", metavar="CHANNEL...", nargs=-1, required=True)
@json_option
def subscribe(user: str, channels: tuple[str, ...], as_json: bool) -> None:
    """Subscribe USER to each CHANNEL, and print the positions; other subscriptions stay."""
    _change_subscriptions("PUT", user, channels, as_json=as_json)


@users.command()
@click.argument("user")
@click.argument("channels", metavar="CHANNEL...", nargs=-1, required=True)
@json_option
def unsubscribe(user: str, channels: tuple[str, ...], as_json: bool) -> None:
    """Unsubscribe USER from each CHANNEL, and print the positions; other subscriptions stay."""
    _change_subscriptions("DELETE", user, channels, as_json=as_json)


@users.command()
@click.argument("user")
@click.option("--limit", type=click.IntRange(1), default=1_000, show_default=True, help="Maximum number of channels.")
@json_option
def subscriptions(user: str, limit: int, as_json: bool) -> None:
    """List the channels that USER is subscribed to, one on each line."""
    channels = ask_pages(f"{_path(user)}/subscriptions", "channels", limit, {})
    if as_json:
        print_json({"user_id": user, "channels": channels})
    else:
        for channel in channels:
            say(printable(channel))


@users.command()
@click.argument("user")
@click.argument("plan")
@json_option
def plan(user: str, plan: str, as_json: bool) -> None:
    """Change the plan of USER to PLAN, which decides how often clusters are rebuilt, and print the position."""
    answer = ask_api("PUT", f"{_path(user)}/plan", json={"plan": plan})
    print_result(answer, as_json=as_json, line=answer["positions"][0])


@users.command()
@click.argument("user")
@json_option
def pending(user: str, as_json: bool) -> None:
    """Show what waits for the next rebuild of USER, and why nothing is rebuilt yet."""
    document = ask_api("GET", f"{_path(user)}/pending")
    if as_json:
        print_json(document)
    else:
        if document.get("delayed"):
            say(printable(delay_line(document["delayed"])) + "\n")
        say(verdict(document) + "\n")
        print_table(("", ""), [(name, value) for name, value in document.items() if isinstance(value, str | int)])
        waiting = [(channel, count) for channel, count in document["by_channel"].items() if count]
        if waiting:
            say()
            print_table(("channel", "pending"), waiting, right=("pending",))


@users.command()
@click.argument("user")
@click.option("--if-new", is_flag=True, help="Rebuild only if USER would see a change.")
@click.option("--force", is_flag=True, help="Override --if-new.")
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


def delay_line(delayed: Mapping[str, Any]) -> str:
    """Return one sentence about `delayed` in an answer of `/api/users/{user}/pending`."""
    return (
        f"Rebuilds are delayed: {delayed['reason']} ({counted(delayed['times'], 'time')} in a row, last at "
        f"{delayed['at']}). The user is asked again without a cooldown, after other users."
    )


def verdict(document: Mapping[str, Any]) -> str:
    """Return one sentence about an answer of `/api/users/{user}/pending`: whether a rebuild is due, or what must come first."""
    if document["waits_for"] == "vectors":
        return "A rebuild is due and waits, for a minute at most, for the vectors of the newest insights."
    if document["due"]:
        return f"A rebuild is due because of {document['trigger']}: the next tick requests it."
    sentences = {
        "subscription": "No rebuild is due: the user is subscribed to no channel (`highwater users subscribe`).",
        "activity": (
            "No rebuild is due: the user is not active. A read with a key of the user counts as activity, and "
            f"`POST {_path(document['user_id'])}/activity` reports one."
        ),
        "time": f"No rebuild is due before {document['due_at']}, unless enough new insights arrive earlier.",
        "answer": f"A rebuild is in progress; it has until {document['due_at']}.",
    }
    return sentences[document["waits_for"]]


def _change_subscriptions(method: str, user: str, channels: Sequence[str], *, as_json: bool) -> None:
    positions: list[str] = []
    for channel in dict.fromkeys(channels):
        answer = ask_api(method, f"{_path(user)}/subscriptions/{path_segment(channel, 'CHANNEL')}")
        positions += answer["positions"]
    if as_json:
        print_json({"positions": positions})
    else:
        say("\n".join(positions))


def _path(user: str) -> str:
    return f"/api/users/{path_segment(user, 'USER')}"
