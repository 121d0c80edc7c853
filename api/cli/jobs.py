"""`highwater jobs`: have something made by the running API, look at it, and watch it being made.

Laws. A job belongs to the product, not to this command: whoever stops watching leaves it alone. Watching goes on where it was
when the connection is lost, so no step is shown twice or left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from api.cli.ask import api_address, detail_of, key_for
from api.cli.command import FAILED, INTERRUPTED, CommandFailedError, Group, json_option
from api.cli.connection import database as open_database
from api.cli.connection import own_settings, stack_settings
from api.cli.terminal import print_json, print_table, printable, progress, warn
from streams.settings import environment_with_file

if TYPE_CHECKING:
    import httpx

    from api.cli.terminal import Bar
    from streams.settings import Settings

_REQUEST_SECONDS = 30.0
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
    with _client(settings, key_for(settings, user_id)) as client:
        answer = _request(client, "POST", "/api/jobs", json=body | {"expires_at": expires_at}, headers=headers)
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
    with _client(settings, _any_key(settings)) as client:
        _watched(client, job_id, None, as_json=as_json)


@jobs.command()
@click.argument("job_id")
@json_option
def show(job_id: str, as_json: bool) -> None:
    """Show how job JOB_ID stands."""
    settings = own_settings()
    with _client(settings, _any_key(settings)) as client:
        document = _request(client, "GET", f"/api/jobs/{job_id}").json()
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

    from connectors.stores.usage import Amounts, Usage
    from connectors.stores.usage import recompute_usage as recompute
    from streams.clock import ProductClock

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


# -- the API --------------------------------------------------------------------------------------------------------------


def _any_key(settings: Settings) -> str | None:
    """The API's key that sees most; None where there are no keys."""
    from api.auth import parse_api_keys

    keys = parse_api_keys(settings.api_keys)
    if not keys:
        return None
    return max(keys, key=lambda one: (one.principal.user_id is None, one.principal.role)).secret.decode()


@contextmanager
def _client(settings: Settings, api_key: str | None) -> Iterator[httpx.Client]:
    import httpx

    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    url = api_address(settings, environment_with_file())
    # trust_env off: a proxy of the environment is not on the way to this machine's own ports.
    with httpx.Client(base_url=url, headers=headers, timeout=_REQUEST_SECONDS, trust_env=False) as client:
        yield client


def _request(client: httpx.Client, method: str, path: str, **more: Any) -> httpx.Response:
    """An answer of the 200s.

    Raises:
        click.UsageError: what was asked is wrong.
        CommandFailedError: the API is away, or will not.
    """
    import httpx

    try:
        answer = client.request(method, path, **more)
    except httpx.HTTPError as error:
        raise CommandFailedError(
            f"the API at {client.base_url} does not answer ({error or type(error).__name__}); `highwater up` starts one"
        ) from error
    _check(answer)
    return answer


def _check(answer: httpx.Response) -> None:
    import httpx

    if answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY:
        raise click.UsageError(detail_of(answer), click.get_current_context())
    if not answer.is_success:
        raise CommandFailedError(f"the API answered {answer.status_code}: {detail_of(answer)}")


def _watched(client: httpx.Client, job_id: str, positions: str | None, *, as_json: bool) -> None:
    """Tell of a job until it has ended, and how it ended."""
    context = click.get_current_context()
    try:
        with progress("job", 100) as bar:
            for told in _events(client, job_id, positions):
                _show(told, bar, as_json=as_json)
        document = _request(client, "GET", f"/api/jobs/{job_id}").json()
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

    from streams.jobs.progress import ENDS

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
                        _check(answer)
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
