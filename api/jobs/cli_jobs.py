"""`highwater jobs`: have something made by the running API, look at it, and watch it being made.

Laws. A job belongs to the product, not to this command: whoever stops watching leaves it alone. Watching goes on where it was
when the connection is lost, so no step is shown twice or left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from highwater.api.command.client import any_key, api_client, check, key_for, request
from highwater.api.command.command import FAILED, INTERRUPTED, Group, json_option
from highwater.api.command.connection import database as open_database
from highwater.api.command.connection import own_settings, stack_settings
from highwater.api.command.terminal import print_json, print_table, printable, progress, warn

if TYPE_CHECKING:
    import httpx

    from highwater.api.command.terminal import Bar

# The API says that it lives every 15 s; who hears nothing for two of those has lost it.
_SILENCE_SECONDS = 35.0
_AGAIN_SECONDS = 1.0


class Told(NamedTuple):
    """A server-sent event: its id, its kind and its document."""

    id: str
    document: dict[str, Any]


@click.group(cls=Group)
def jobs() -> None:
    """Decks, ingests and exports: have them made, watch them, look at them."""


@jobs.command()
@click.argument("kind", type=click.Choice(["generation", "ingestion", "export"]))
@click.argument("args")
@click.option("--organization", "organization_id", required=True, help="Whose limits and usage it counts for.")
@click.option("--user", "user_id", required=True, help="Who wants it.")
@click.option("--expires-at", help="Not begun by then (ISO 8601), it is not begun at all.")
@click.option("--idempotency-key", help="The same key again is the same job.")
@click.option("--watch", "is_watched", is_flag=True, help="Watch it until it has ended.")
@json_option
def submit(
    kind: str,
    args: str,
    organization_id: str,
    user_id: str,
    expires_at: str | None,
    idempotency_key: str | None,
    is_watched: bool,
    as_json: bool,
) -> None:
    """Have a job of KIND made with ARGS, a JSON object (`-` reads it from standard input)."""
    import sys

    import orjson

    context = click.get_current_context()
    try:
        found = orjson.loads(sys.stdin.buffer.read() if args == "-" else args)
    except orjson.JSONDecodeError as error:
        raise click.UsageError(f"ARGS is not JSON: {error}", context) from error
    settings = own_settings()
    body = {"kind": kind, "organization_id": organization_id, "user_id": user_id, "args": found}
    headers = {} if idempotency_key is None else {"Idempotency-Key": f'"{idempotency_key}"'}
    with api_client(settings, key_for(settings, user_id)) as client:
        answer = request(client, "POST", "/api/jobs", json=body | {"expires_at": expires_at}, headers=headers)
        if not is_watched:
            _print(answer.json(), as_json=as_json, line=answer.json()["job_id"])
            return
        warn(f"job {answer.json()['job_id']}")
        _watched(client, answer.json()["job_id"], ",".join(answer.json()["positions"]), as_json=as_json)


@jobs.command()
@click.argument("job_id")
@json_option
def watch(job_id: str, as_json: bool) -> None:
    """Show the steps of job JOB_ID until it has ended; exit status 1 if it failed."""
    settings = own_settings()
    with api_client(settings, any_key(settings)) as client:
        _watched(client, job_id, None, as_json=as_json)


@jobs.command()
@click.argument("job_id")
@json_option
def show(job_id: str, as_json: bool) -> None:
    """Show how job JOB_ID stands."""
    settings = own_settings()
    with api_client(settings, any_key(settings)) as client:
        document = request(client, "GET", f"/api/jobs/{job_id}").json()
    if as_json:
        print_json(document)
    else:
        print_table(("", ""), [(name, value) for name, value in document.items() if value is not None])


@jobs.command("recompute-usage")
@click.option("--org", "organization_id", help="Of this organization only.")
@click.option("--period", help="Of this month only (YYYY-MM).")
@click.option("--store", "is_stored", is_flag=True, help="Raise stored totals that are below what the jobs say.")
@json_option
def recompute_usage(organization_id: str | None, period: str | None, is_stored: bool, as_json: bool) -> None:
    """Count usage anew from the jobs, beside what was flushed; exit status 1 if they differ and nothing was stored."""
    import asyncio

    from highwater.connectors.jobs.usage import Amounts, Usage
    from highwater.connectors.jobs.usage import recompute_usage as recompute
    from highwater.streams.clock import ProductClock

    settings = stack_settings("database")

    async def recomputed() -> list[Usage]:
        async with open_database(settings) as pool:
            now_ms = ProductClock(settings.clock_file)()
            return await recompute(
                pool, organization_id=organization_id, period=period, is_stored=is_stored, now_ms=now_ms
            )

    found = asyncio.run(recomputed())
    if as_json:
        for one in found:
            print_json(
                {
                    "organization_id": one.organization_id,
                    "period": one.period,
                    "flushed": one.flushed._asdict(),
                    "recomputed": one.recomputed._asdict(),
                }
            )
    else:
        names = Amounts._fields
        rows = [(one.organization_id, one.period, *one.recomputed, *one.flushed) for one in found]
        columns = ("organization", "period", *names, *(f"flushed {name}" for name in names))
        print_table(columns, rows, right=columns[2:])
    if any(one.is_behind for one in found) and not is_stored:
        click.get_current_context().exit(FAILED)


# -- watching ------------------------------------------------------------------------------------------------------------


def _watched(client: httpx.Client, job_id: str, positions: str | None, *, as_json: bool) -> None:
    """Tell of a job until it has ended, and how it ended."""
    context = click.get_current_context()
    try:
        with progress("job", 100) as bar:
            for told in _events(client, job_id, positions):
                _show(told, bar, as_json=as_json)
        document = request(client, "GET", f"/api/jobs/{job_id}").json()
    except KeyboardInterrupt:
        warn(f"job {job_id} goes on without this command")
        context.exit(INTERRUPTED)
    said = document["error"] or document["result_url"] or document["result"] or ""
    _print(document, as_json=as_json, line=f"{document['status']} {said}".rstrip())
    if document["status"] != "completed":
        context.exit(FAILED)


def _print(document: dict[str, Any], *, as_json: bool, line: str) -> None:
    if as_json:
        print_json(document)
    else:
        click.echo(printable(line))


def _show(told: Told, bar: Bar, *, as_json: bool) -> None:
    """A step: on the bar, and beside it where that is no terminal's."""
    import sys

    document = told.document
    if "progress_pct" in document:
        bar.update(document["progress_pct"])
    if as_json:
        print_json(document)
    elif not sys.stdout.isatty():
        said = (document.get(name) for name in ("event_type", "slide_number", "slide_title", "error_message"))
        line = " ".join(str(part) for part in said if part is not None)
        click.echo(printable(f"{document.get('progress_pct', '')}% {line}"))


def _events(client: httpx.Client, job_id: str, positions: str | None) -> Iterator[Told]:
    """The events of a job until it has ended, over as many connections as that takes.

    Raises:
        click.UsageError: that is no job's id.
        CommandFailedError: there is no such job, or it may not be seen.
    """
    import time

    import httpx

    from highwater.streams.jobs.progress import ENDS

    headers = {} if positions is None else {"X-Min-Position": positions}
    is_said = False
    while True:
        try:
            with client.stream(
                "GET", f"/api/jobs/{job_id}/events", headers=headers, timeout=_SILENCE_SECONDS
            ) as answer:
                if answer.status_code == httpx.codes.NO_CONTENT:
                    return
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    if not answer.is_success:
                        answer.read()
                        check(answer)
                    is_said = False
                    for told in _parsed(answer.iter_lines()):
                        headers["Last-Event-ID"] = told.id
                        yield told
                        if told.document["event_type"] in ENDS:
                            return
        except httpx.TransportError as error:
            if not is_said:
                is_said = True
                warn(f"the API does not answer ({error or type(error).__name__}); trying again")
        time.sleep(_AGAIN_SECONDS)


def _parsed(lines: Iterator[str]) -> Iterator[Told]:
    """The events in a stream of lines; of other fields and comments nothing is made."""
    import orjson

    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields and "id" in fields:
            yield Told(fields["id"], orjson.loads(fields["data"]))
        fields = {}
