"""`highwater users`: a user's subscriptions, plan, pending insights, rebuild and erasure, by the running API."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import click

from highwater.api.command.client import ask_api, ask_pages, path_segment
from highwater.api.command.command import CommandFailedError, Group, json_option
from highwater.api.command.terminal import print_json, print_result, print_table, say
from highwater.streams.clock import monotonic_seconds
from highwater.streams.feeds.digest_text import messages_of, plain_text
from highwater.streams.printable import printable, printable_lines
from highwater.streams.wording import counted

# Longer than a rebuild with all its attempts; behind a long queue it takes longer, and the request stays.
_OUTCOME_SECONDS_MAX, _OUTCOME_POLL_SECONDS = 600.0, 0.5
_SKIPS = {
    "nothing_new": "nothing is new",
    "locked": "another one of this user is in progress",
    "vectors_missing": "the new insights have no vectors yet",
    "unknown_user": "the user was erased meanwhile",
    "overtaken": "another one was stored meanwhile",
}


@click.group(cls=Group)
def users() -> None:
    """Subscribe a user, show what is new and what waits for a user, rebuild a user's clusters, erase a user."""


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
@click.argument("wish")
@json_option
def naming(user: str, wish: str, as_json: bool) -> None:
    """Say how a language model should name the clusters of USER, e.g. "group by product", and print the position."""
    answer = ask_api("PUT", f"{_path(user)}/naming", json={"wish": wish})
    print_result(answer, as_json=as_json, line=answer["positions"][0])


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
@click.option(
    "--since", type=click.IntRange(0), help="Cluster version to begin after; default: the version 24 hours earlier."
)
@json_option
def digest(user: str, since: int | None, as_json: bool) -> None:
    """Show what is new in the feed of USER, and the version with which the next digest begins."""
    document = ask_api("GET", f"{_path(user)}/digest", params={} if since is None else {"since": since})
    if as_json:
        print_json(document)
    else:
        say(printable_lines(plain_text(document, messages_of(document)).rstrip()))


@users.command()
@click.argument("user")
@click.option("--if-new", is_flag=True, help="Rebuild only if USER would see a change.")
@click.option("--force", is_flag=True, help="Override --if-new.")
@click.option("--no-wait", is_flag=True, help="Print the position of the request; do not wait for the outcome.")
@json_option
def rebuild(user: str, if_new: bool, force: bool, no_wait: bool, as_json: bool) -> None:
    """Request a rebuild of the clusters of USER, wait for it, and print its outcome."""
    answer = ask_api("POST", f"{_path(user)}/rebuild", params={"if_new": if_new, "force": force})
    position = answer["positions"][0]
    if no_wait:
        print_result(answer, as_json=as_json, line=position)
        return
    demand = _outcome(user, position)
    print_result(demand, as_json=as_json, line=outcome_line(demand))
    if demand["status"] == "failed":
        raise click.exceptions.Exit(1)


def _outcome(user: str, position: str) -> Mapping[str, Any]:
    """Return the outcome of a demanded rebuild, once there is one."""
    path = f"{_path(user)}/rebuilds/{path_segment(position, 'POSITION')}"
    end = monotonic_seconds() + _OUTCOME_SECONDS_MAX
    while (demand := ask_api("GET", path))["status"] == "pending":
        if monotonic_seconds() > end:
            raise CommandFailedError(
                f"no outcome of {position} after {_OUTCOME_SECONDS_MAX:.0f} s; it stays requested, "
                f"`highwater users pending {user}` says what it waits for"
            )
        time.sleep(_OUTCOME_POLL_SECONDS)
    return cast("Mapping[str, Any]", demand)


def outcome_line(demand: Mapping[str, Any]) -> str:
    """Return one sentence about the outcome of a demanded rebuild."""
    version, reason = demand["cluster_version"], printable(demand["reason"] or "")
    match demand["status"]:
        case "rebuilt":
            return f"Version {version} was made."
        case "unchanged":
            return f"Nothing changed: version {version} stays."
        case "skipped":
            return f"No rebuild: {_SKIPS.get(reason, reason)}. The version is {version}."
        case _:
            return f"The rebuild failed: {reason}. The version is {version}."


@users.command()
@click.argument("user")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of clusters.")
@json_option
def clusters(user: str, limit: int, as_json: bool) -> None:
    """List the clusters of USER, the largest first."""
    document = ask_api("GET", f"{_path(user)}/clusters", params={"limit": limit})
    if as_json:
        print_json(document)
        return
    if not document["cluster_version"]:
        say(f"There is no version yet; `highwater users pending {printable(user)}` says what it waits for.")
        return
    how = next((f", {name}" for name in ("preliminary", "regrouped") if document.get(name)), "")
    say(f"Version {document['cluster_version']} of {document['updated_at']}{how}\n")
    rows = [(str(one["size"]), one.get("title") or one["label"], one.get("theme", "")) for one in document["clusters"]]
    print_table(("insights", "cluster", "theme"), rows, right=("insights",))
    more = " (more with --limit)" if document.get("next_cursor") else ""
    say(f"\n{counted(document['noise'], 'insight')} in no cluster{more}")


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
