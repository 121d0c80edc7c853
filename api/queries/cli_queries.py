"""`highwater queries`: list, show, cancel and restart queries of the running API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from highwater.api.command.client import ask_api, ask_pages, path_segment
from highwater.api.command.command import Group, json_option
from highwater.api.command.restarts import ask_restarts, restart_options, show_restarts
from highwater.api.command.terminal import print_json, print_list, print_result, print_table, say, warn
from highwater.streams.queries.restarts import ANSWERING
from highwater.streams.queries.states import Stage
from highwater.streams.wording import agreed, counted

_HEAD = ("request_id", "user_id", "query", "status", "error", "created_at", "duration_ms", "restarted_from", "position")
_STAGE = ("stage", "started_at", "ended_at", "duration_ms")
_CALL = (
    "stage",
    "attempt",
    "model",
    "outcome",
    "duration_ms",
    "prompt_tokens",
    "completion_tokens",
    "cost_usd",
    "error",
)
_EVENT = ("at", "status", "position")
_COLUMNS = ("request_id", "status", "created_at", "query", "error")


@click.group(cls=Group)
def queries() -> None:
    """List, show, cancel and restart queries; `highwater ask` submits one."""


@queries.command("list")
@click.argument("user")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Maximum number of queries.")
@json_option
def list_queries(user: str, limit: int, as_json: bool) -> None:
    """List the queries of USER, the newest first."""
    found = ask_pages(f"/api/users/{path_segment(user, 'USER')}/queries", "queries", limit, {})
    print_list(found, _COLUMNS, as_json=as_json)


@queries.command()
@click.argument("request_id")
@json_option
def show(request_id: str, as_json: bool) -> None:
    """Show query REQUEST_ID: each stage and each call of the model, with its attempts, tokens, cost and position."""
    document = ask_api("GET", f"/api/query/{path_segment(request_id, 'REQUEST_ID')}/timeline")
    if as_json:
        print_json(document)
        return
    print_table(("", ""), [(name, document[name]) for name in _HEAD if document[name] is not None])
    calls = [{"stage": stage["stage"], **call} for stage in document["stages"] for call in stage["attempts"]]
    for rows, columns in ((document["stages"], _STAGE), (calls, _CALL), (document["events"], _EVENT)):
        if rows:
            say()
            print_table(columns, [["" if row[one] is None else row[one] for one in columns] for row in rows])


@queries.command()
@click.argument("request_id")
@json_option
def cancel(request_id: str, as_json: bool) -> None:
    """Cancel query REQUEST_ID in whichever stage it is; one that has ended stays as it is."""
    answer = ask_api("POST", f"/api/query/{path_segment(request_id, 'REQUEST_ID')}/cancel")
    print_result(answer, as_json=as_json, line=answer["request_id"])


@queries.command()
@click.argument("request_id")
@click.option(
    "--stage",
    type=click.Choice([str(one) for one in Stage]),
    default=str(Stage.ANALYZER),
    show_default=True,
    help="First stage that is repeated; results of earlier ones are taken over.",
)
@json_option
def restart(request_id: str, stage: str, as_json: bool) -> None:
    """Start a new query from a stage of query REQUEST_ID, and print its id."""
    answer = ask_api("POST", f"/api/query/{path_segment(request_id, 'REQUEST_ID')}/restart", json={"stage": stage})
    print_result(answer, as_json=as_json, line=answer["request_id"])


@queries.command("restart-failed")
@click.option("--organization", "organization_id", help="Only queries that this organization pays for.")
@click.option(
    "--stage",
    type=click.Choice([str(one) for one in ANSWERING]),
    help="Only queries that continue with this stage.",
)
@restart_options("queries")
@json_option
def restart_failed(
    organization_id: str | None,
    stage: str | None,
    reason: str | None,
    user_id: str | None,
    begin: str | None,
    end: str | None,
    execute: bool,
    as_json: bool,
) -> None:
    """Restart the failed queries that a filter finds, up to 500 at once, each from the stage that failed.

    Each becomes a new query; queries that were cancelled, or restarted already, are not found. Without --execute it shows how
    many there are, of whom, why they failed, and what the restart is expected to cost.
    """
    asked = {"reason": reason, "stage": stage, "organization_id": organization_id, "user_id": user_id}
    found = ask_restarts("/api/queries/restart", {**asked, "from": begin, "to": end}, execute=execute)
    columns = ("request_id", "user_id", "failed_at", "stage", "query", "error")
    show_restarts(found, "queries", columns, (), execute=execute, as_json=as_json)
    if as_json:
        return
    if found["queries"]:
        say(f"{counted(found['stages_left'], 'stage')}{expected_text(found)}")
    for one in found["refusals"]:
        warn(
            f"highwater: {counted(one['queries'], 'query', 'queries')} of {one['organization_id']} "
            f"{agreed(one['queries'], 'is', 'are')} left out: {one['reason']}"
        )


def expected_text(plan: Mapping[str, Any]) -> str:
    """Return the expected cost of restarts, as the end of a sentence; empty if unknown."""
    tokens, cost = plan["expected_tokens"], plan["expected_cost_usd"]
    if tokens is None:
        return ", number of tokens unknown"
    return f", about {counted(tokens, 'token')}" + ("" if cost is None else f" ({cost:,.4f} USD)")
