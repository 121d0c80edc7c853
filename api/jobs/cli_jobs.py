"""`highwater jobs`: submit, list, watch, approve, revoke and restart jobs of the running API; documents and files.

Invariants. A job belongs to the product, not to this command: a user who stops watching does not change it. After a
lost connection watching continues where it was, so no step is shown twice or left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from highwater.api.command.client import any_key, api_client, ask_api, ask_pages, check, key_for, path_segment, request
from highwater.api.command.command import FAILED, INTERRUPTED, CommandFailedError, Group, json_option
from highwater.api.command.connection import database as open_database
from highwater.api.command.connection import own_settings, stack_settings
from highwater.api.command.restarts import ask_restarts, restart_options, show_restarts
from highwater.api.command.terminal import print_json, print_list, print_result, print_table, progress, say, warn
from highwater.streams.jobs.states import JobStatus, Kind
from highwater.streams.printable import printable

if TYPE_CHECKING:
    import httpx2

    from highwater.api.command.terminal import Bar

# The API sends a heartbeat every 15 s; without two of them the connection is lost.
_SILENCE_SECONDS = 35.0
_AGAIN_SECONDS = 1.0


class ServerSentEvent(NamedTuple):
    """A server-sent event: its id, its kind and its document."""

    id: str
    document: dict[str, Any]


@click.group(cls=Group)
def jobs() -> None:
    """Submit, list, watch, approve, revoke and restart jobs: presentations, ingestions, exports."""


@jobs.command()
@click.argument("kind", type=click.Choice(["generation", "ingestion", "export"]))
@click.argument("args")
@click.option("--organization", "organization_id", required=True, help="Organization that the job counts for.")
@click.option("--user", "user_id", required=True, help="User who submits the job.")
@click.option("--expires-at", help="Do not start the job after this time (ISO 8601).")
@click.option("--idempotency-key", help="A repeat with the same key is the same job.")
@click.option("--watch", "is_watched", is_flag=True, help="Watch the job until it ends.")
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
    """Submit a job of KIND with ARGS, a JSON object (`-` = standard input)."""
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
            print_result(answer.json(), as_json=as_json, line=answer.json()["job_id"])
            return
        warn(f"job {answer.json()['job_id']}")
        _watched(client, answer.json()["job_id"], ",".join(answer.json()["positions"]), as_json=as_json)


@jobs.command()
@click.argument("job_id")
@json_option
def watch(job_id: str, as_json: bool) -> None:
    """Show the progress of job JOB_ID until it ends; exit status 1 if it failed."""
    settings = own_settings()
    with api_client(settings, any_key(settings)) as client:
        _watched(client, job_id, None, as_json=as_json)


@jobs.command()
@click.argument("job_id")
@json_option
def show(job_id: str, as_json: bool) -> None:
    """Show the status of job JOB_ID."""
    document = ask_api("GET", f"/api/jobs/{job_id}")
    if as_json:
        print_json(document)
    else:
        print_table(("", ""), [(name, value) for name, value in document.items() if value is not None])


@jobs.command("list")
@click.option("--organization", "organization_id", required=True, help="Organization whose jobs to list.")
@click.option("--status", type=click.Choice([str(one) for one in JobStatus]), help="Only jobs with this status.")
@click.option("--kind", type=click.Choice([str(one) for one in Kind]), help="Only jobs of this kind.")
@click.option("--user", "user_id", help="Only jobs of this user.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Maximum number of jobs.")
@json_option
def list_jobs(
    organization_id: str, status: str | None, kind: str | None, user_id: str | None, limit: int, as_json: bool
) -> None:
    """List the jobs of an organization, the newest first."""
    wanted = {"status": status, "kind": kind, "user_id": user_id}
    given = {name: value for name, value in wanted.items() if value is not None}
    path = f"/api/organizations/{path_segment(organization_id, '--organization')}/jobs"
    found = ask_pages(path, "jobs", limit, given)
    columns = ("job_id", "kind", "status", "progress_pct", "user_id", "created_at", "error")
    print_list(found, columns, as_json=as_json, right=("progress_pct",))


@jobs.command()
@click.argument("job_id")
@json_option
def revoke(job_id: str, as_json: bool) -> None:
    """Revoke job JOB_ID: it is not started any more, and further writes by its worker are rejected."""
    answer = ask_api("DELETE", f"/api/jobs/{job_id}")
    print_result(answer, as_json=as_json, line=answer["job_id"])


@jobs.command()
@click.argument("job_id")
def outline(job_id: str) -> None:
    """Print the outline of job JOB_ID as JSON, to be edited for `jobs approve --outline`."""
    document = ask_api("GET", f"/api/jobs/{job_id}")
    found = {**(document["result"] or {}), **(document["waiting_for"] or {})}.get("outline")
    if found is None:
        raise CommandFailedError(f"job {job_id} has no outline that waits for approval")
    print_json(found)


@jobs.command()
@click.argument("job_id")
@click.option(
    "--outline",
    "file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="JSON file with another outline for the deck (`-` = standard input).",
)
@click.option("--watch", "is_watched", is_flag=True, help="Watch the job until it ends.")
@json_option
def approve(job_id: str, file: str | None, is_watched: bool, as_json: bool) -> None:
    """Approve the outline of job JOB_ID, so that its slides are made."""
    import orjson

    body: dict[str, Any] = {}
    if file is not None:
        with click.open_file(file, "rb") as stream:
            try:
                body["outline"] = orjson.loads(stream.read())
            except orjson.JSONDecodeError as error:
                raise click.UsageError(f"{file} is not JSON: {error}", click.get_current_context()) from error
    _changed(job_id, "approve", body, is_watched=is_watched, as_json=as_json)


@jobs.command()
@click.argument("job_id")
@click.option("--watch", "is_watched", is_flag=True, help="Watch the job until it ends.")
@json_option
def restart(job_id: str, is_watched: bool, as_json: bool) -> None:
    """Restart failed job JOB_ID from its last stored step; finished steps are not repeated or paid again."""
    _changed(job_id, "restart", None, is_watched=is_watched, as_json=as_json)


def _changed(job_id: str, action: str, body: Any, *, is_watched: bool, as_json: bool) -> None:
    """Request an action on a job, then watch the job."""
    settings = own_settings()
    with api_client(settings, any_key(settings)) as client:
        before = request(client, "GET", f"/api/jobs/{job_id}").json()
        answer = request(client, "POST", f"/api/jobs/{job_id}/{action}", json=body).json()
        if not is_watched:
            print_result(answer, as_json=as_json, line=answer["job_id"])
            return
        _watched(client, job_id, ",".join(answer["positions"]), as_json=as_json, after=before["last_event_id"])


@jobs.command("restart-failed")
@click.option("--organization", "organization_id", required=True, help="Organization whose failed jobs to restart.")
@click.option("--step", type=click.IntRange(min=0), help="Only jobs that failed after this many steps.")
@click.option("--kind", type=click.Choice([str(one) for one in Kind]), help="Only jobs of this kind.")
@restart_options("jobs")
@json_option
def restart_failed(
    organization_id: str,
    step: int | None,
    kind: str | None,
    reason: str | None,
    user_id: str | None,
    begin: str | None,
    end: str | None,
    execute: bool,
    as_json: bool,
) -> None:
    """Restart the failed jobs of an organization that a filter finds, up to 500 at once, each after its last stored step.

    Without --execute it shows how many there are, why they failed, and which would be restarted.
    """
    path = f"/api/organizations/{path_segment(organization_id, '--organization')}/jobs/restart"
    asked = {"reason": reason, "step": step, "kind": kind, "user_id": user_id, "from": begin, "to": end}
    found = ask_restarts(path, asked, execute=execute)
    columns = ("job_id", "kind", "user_id", "failed_at", "steps_done", "error")
    show_restarts(found, "jobs", columns, ("steps_done",), execute=execute, as_json=as_json)
    if found["refusal"] is not None and not as_json:
        warn(f"highwater: not possible now: {found['refusal']}")


# -- documents and files
# -------------------------------------------------------------------------------------------------


@jobs.group(cls=Group)
def blobs() -> None:
    """Documents that jobs read, and files that they write."""


@blobs.command("put")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--organization", "organization_id", required=True, help="Organization that owns the document.")
@click.option("--name", help="File name for downloads [default: the name of FILE].")
@click.option("--type", "media_type", help="Media type [default: by the file extension].")
@json_option
def put_blob(file: str, organization_id: str, name: str | None, media_type: str | None, as_json: bool) -> None:
    """Upload FILE (`-` = standard input) for use in jobs; prints its SHA-256."""
    from highwater.streams.jobs.file_names import media_type_of

    settings = own_settings()
    called = name or (None if file == "-" else Path(file).name)
    guessed = media_type or (called and media_type_of(called)) or "application/octet-stream"
    wanted = {"organization_id": organization_id, **({} if called is None else {"filename": called})}
    with api_client(settings, any_key(settings)) as client, click.open_file(file, "rb") as stream:
        headers = {"Content-Type": guessed}
        answer = request(client, "PUT", "/api/blobs", params=wanted, content=stream, headers=headers).json()
    print_result(answer, as_json=as_json, line=answer["sha256"])


@blobs.command("get")
@click.argument("sha256")
@click.option("--organization", "organization_id", help="Organization to read as.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Target file; `-` = standard output [default: its own name].",
)
@click.option("--force", "is_replaced", is_flag=True, help="Replace an existing file.")
@json_option
def get_blob(sha256: str, organization_id: str | None, output: Path | None, is_replaced: bool, as_json: bool) -> None:
    """Download document SHA256, under its own name to this folder unless --output is given."""
    from highwater.api.jobs.downloads import save

    settings = own_settings()
    wanted = {} if organization_id is None else {"organization_id": organization_id}
    with api_client(settings, any_key(settings)) as client:
        saved = save(client, sha256, wanted, output, is_replaced=is_replaced)
    if saved is not None:
        print_result({"sha256": sha256.lower(), "file": str(saved)}, as_json=as_json, line=str(saved))


@blobs.command("left-out")
@click.argument("sha256")
@click.option("--organization", "organization_id", help="Organization to read as.")
@json_option
def left_out(sha256: str, organization_id: str | None, as_json: bool) -> None:
    """List what ingestion leaves out of document SHA256: running heads, page numbers, contents, menus.

    A job with "keep_all": true in its args keeps it as text.
    """
    settings = own_settings()
    wanted = {} if organization_id is None else {"organization_id": organization_id}
    with api_client(settings, any_key(settings)) as client:
        answer = request(client, "GET", f"/api/blobs/{sha256}/left-out", params=wanted).json()
    if as_json:
        print_json(answer)
    else:
        rows = [(part["reason"].replace("_", " "), " ".join(part["text"].split())) for part in answer["parts"]]
        print_table(("reason", "text"), rows)


# -- public links
# -------------------------------------------------------------------------------------------------------------


@jobs.group(cls=Group)
def links() -> None:
    """Public links, by which anybody reads a presentation without a key."""


@links.command("create")
@click.argument("presentation_id")
@json_option
def create_link(presentation_id: str, as_json: bool) -> None:
    """Create a public link of PRESENTATION_ID, the id of the job that made it; prints its address, which is not shown again."""
    settings = own_settings()
    with api_client(settings, any_key(settings)) as client:
        answer = request(client, "POST", f"/api/presentations/{presentation_id}/links").json()
        address = str(client.base_url.join(answer["url"]))
    print_result({**answer, "url": address}, as_json=as_json, line=address)


@links.command("list")
@click.argument("presentation_id")
@json_option
def list_links(presentation_id: str, as_json: bool) -> None:
    """List the public links of PRESENTATION_ID that work, without their addresses."""
    answer = ask_api("GET", f"/api/presentations/{presentation_id}/links")
    print_list(answer["links"], ("link_id", "created_at"), as_json=as_json)


@links.command("revoke")
@click.argument("presentation_id")
@click.argument("link_id")
@json_option
def revoke_link(presentation_id: str, link_id: str, as_json: bool) -> None:
    """Revoke link LINK_ID of PRESENTATION_ID."""
    settings = own_settings()
    with api_client(settings, any_key(settings)) as client:
        request(client, "DELETE", f"/api/presentations/{presentation_id}/links/{link_id}")
    print_result({"link_id": link_id}, as_json=as_json, line=link_id)


@jobs.command()
@json_option
def sockets(as_json: bool) -> None:
    """Count the open sockets on jobs, by process and by user."""
    found = ask_api("GET", "/api/sockets")
    if as_json:
        print_json(found)
        return
    rows = [("process", one["server_id"], one["sockets"]) for one in found["processes"]]
    rows += [("user", one["user_id"], one["sockets"]) for one in found["users"]]
    print_table(("", "name", "sockets"), [*rows, ("all", "", found["sockets"])], right=("sockets",))


@jobs.command("recompute-usage")
@click.option("--org", "organization_id", help="Only this organization.")
@click.option("--period", help="Only this month (YYYY-MM).")
@click.option(
    "--store",
    "is_stored",
    is_flag=True,
    help="Raise the flushed totals to the recomputed ones.",
)
@json_option
def recompute_usage(organization_id: str | None, period: str | None, is_stored: bool, as_json: bool) -> None:
    """Recompute usage from each job and compare it with the flushed totals at the same position.

    Exit status 1 if they differ and --store is not given. Usage that waits for the next flush (up to 15 minutes) is not a
    difference.
    """
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
                    "flushed_seq": one.flushed_seq,
                    "recomputed_at_flush": one.recomputed_then._asdict(),
                    "recomputed": one.recomputed._asdict(),
                    "last_seq": one.last_seq,
                    "unflushed": one.unflushed,
                    "differs": one.is_behind or not one.is_summed,
                }
            )
    else:
        names = Amounts._fields
        rows = [(one.organization_id, one.period, *one.recomputed, *one.flushed, one.unflushed) for one in found]
        columns = ("organization", "period", *names, *(f"flushed {name}" for name in names), "not flushed yet")
        print_table(columns, rows, right=columns[2:])
    if any(one.is_behind or not one.is_summed for one in found) and not is_stored:
        click.get_current_context().exit(FAILED)


# -- watching
# ------------------------------------------------------------------------------------------------------------


def _watched(
    client: httpx2.Client, job_id: str, positions: str | None, *, as_json: bool, after: str | None = None
) -> None:
    """Show a job until it has ended, and how it ended; only events after `after`."""
    from highwater.streams.jobs.progress import OUTLINE_READY

    context = click.get_current_context()
    try:
        with progress("job", 100) as bar:
            for told in _events(client, job_id, positions, after):
                _show(told, bar, as_json=as_json)
                if told.document["event_type"] == OUTLINE_READY:
                    warn(
                        f"the outline waits for approval: highwater jobs outline {job_id}, highwater jobs approve {job_id}"
                    )
        document = request(client, "GET", f"/api/jobs/{job_id}").json()
    except KeyboardInterrupt:
        warn(f"job {job_id} continues without this command")
        context.exit(INTERRUPTED)
    said = document["error"] or document["result_url"] or document["result"] or ""
    print_result(document, as_json=as_json, line=f"{document['status']} {said}".rstrip())
    if document["status"] != "completed":
        context.exit(FAILED)


def _show(event: ServerSentEvent, bar: Bar, *, as_json: bool) -> None:
    """Show a step: on the bar, and beside it if that is not a terminal's."""
    import sys

    document = event.document
    if "progress_pct" in document:
        bar.update(document["progress_pct"])
    if as_json:
        print_json(document)
    elif not sys.stdout.isatty():
        said = (document.get(name) for name in ("event_type", "slide_number", "slide_title", "error_message"))
        line = " ".join(str(part) for part in said if part is not None)
        say(printable(f"{document.get('progress_pct', '')}% {line}"))


def _events(client: httpx2.Client, job_id: str, positions: str | None, after: str | None) -> Iterator[ServerSentEvent]:
    """Yield the events of a job until it has ended, over as many connections as necessary.

    Raises:
        click.UsageError: that is not a job's id.
        CommandFailedError: the job does not exist, or is not visible to the caller.
    """
    import time

    import httpx2

    from highwater.streams.jobs.progress import ENDS

    headers = {} if positions is None else {"X-Min-Position": positions}
    if after is not None:
        headers["Last-Event-ID"] = after
    is_said = False
    while True:
        try:
            with client.stream(
                "GET", f"/api/jobs/{job_id}/events", headers=headers, timeout=_SILENCE_SECONDS
            ) as answer:
                if answer.status_code == httpx2.codes.NO_CONTENT:
                    return
                if answer.status_code != httpx2.codes.SERVICE_UNAVAILABLE:
                    if not answer.is_success:
                        answer.read()
                        check(answer)
                    is_said = False
                    has_ended = False
                    for told in _parsed(answer.iter_lines()):
                        headers["Last-Event-ID"] = told.id
                        yield told
                        has_ended = told.document["event_type"] in ENDS
                    if has_ended:
                        continue  # 204 means that; a failed job that was restarted since continues
        except httpx2.TransportError as error:
            if not is_said:
                is_said = True
                warn(f"the API does not answer ({str(error) or type(error).__name__}); trying again")
        time.sleep(_AGAIN_SECONDS)


def _parsed(lines: Iterator[str]) -> Iterator[ServerSentEvent]:
    """Yield the events in a stream of lines; other fields and comments are ignored."""
    import orjson

    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields and "id" in fields:
            yield ServerSentEvent(fields["id"], orjson.loads(fields["data"]))
        fields = {}
