"""`highwater import files|git|jsonl|github`: imports documents as chunks, and commits as insights."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from highwater.api.chunks.import_run import COUNT, KEEP, SHOW, Draw, Faults, Import, ImportOptions, UseOrigin
from highwater.api.command.command import FAILED, INTERRUPTED, Command, CommandFailedError, json_option
from highwater.api.command.connection import kafka_client, stack_settings
from highwater.api.command.terminal import print_json, progress, say, warn
from highwater.streams.printable import printable
from highwater.streams.wording import agreed, counted

if TYPE_CHECKING:
    from highwater.connectors.sources.chunked import Origin
    from highwater.connectors.sources.git import Repository
    from highwater.connectors.sources.remembered import Remembered

_PARTS = ("kafka", "schema_registry")
_BAR_EVERY_COMMITS = 500
# Defaults for GitHub: at most ten thousand entries, and at most a minute of waiting for its rate limit.
_PAGES, _WAIT_SECONDS = 100, 60.0
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
_KINDS = ("issues", "pulls", "comments", "releases", "commits")

_ns = click.option("--ns", required=True, metavar="NS", help="The namespace of the chunks.")
_slot = click.option("--slot", metavar="SLOT", help="The slot [default: the name of the imported source].")
_full = click.option("--full", is_flag=True, help="Mark for deletion what no longer exists in the source.")
_force = click.option("--force", is_flag=True, help="With --full, also if a source, or everything, is empty.")
_left_out = click.option(
    "--left-out",
    type=click.Choice([COUNT, SHOW, KEEP]),
    default=COUNT,
    show_default=True,
    help="Count, show or keep as text what is not judged to be text: running heads, page numbers, contents, menus.",
)
_open = click.option("--open", "opens", is_flag=True, help="Let answers to every user's questions quote the namespace.")
_include = click.option(
    "--include", multiple=True, metavar="GLOB", help="Files to import [default: all of known types]."
)
_url = click.option("--url", metavar="BASE", help="Base URL of the files: a file's address is BASE/PATH.")


@click.command(cls=Command)
@click.argument("folder", type=_FOLDER, metavar="DIR")
@_ns
@_slot
@_full
@_force
@_left_out
@_open
@_include
@_url
@json_option
def files(
    folder: Path,
    ns: str,
    slot: str | None,
    full: bool,
    force: bool,
    left_out: str,
    opens: bool,
    include: tuple[str, ...],
    url: str | None,
    as_json: bool,
) -> None:
    """Publish the documents of a folder (Markdown, HTML, PDF, PPTX, text) as chunks.

    A source is a file, identified by its path from DIR. Unreadable files are named and skipped, and the exit status is
    then 1. With --full, chunks that a file has no longer, and files that are gone, are marked for deletion.
    Files are found however old they are, unless the table of NS in HIGHWATER_NAMESPACES gives it a ttl_days.
    """
    from highwater.connectors.sources.files import Folder

    wanted = _wanted(ns, slot or folder.resolve().name, full, force, left_out, opens, lasts=True)
    origin = Folder(folder, patterns=include, url=url)
    Import(stack_settings(*_PARTS), wanted).run(str(folder), _with(origin), origin.identity, as_json=as_json)


@click.command(cls=Command)
@click.argument("file", type=_FILE)
@_ns
@_slot
@_full
@_force
@_left_out
@_open
@json_option
def jsonl(
    file: Path, ns: str, slot: str | None, full: bool, force: bool, left_out: str, opens: bool, as_json: bool
) -> None:
    """Publish JSON lines (FILE, `-` for standard input, gzip read) as chunks.

    A line is a document, {"source_id", "text", "media_type"?, "title"?, "url"?, "published_at"?}, which is split; or a
    chunk, {"source_id", "chunk_no", "content", "title"?, "url"?, "published_at"?, "embedding"?}. A bad line is named
    and skipped, and the exit status is then 1. With --full, chunks of a source that the lines do not name are marked
    for deletion.
    """
    from highwater.api.command.lines import decompressed, iter_lines
    from highwater.connectors.sources.json_lines import JsonLines

    name = "main" if file == Path("-") else file.name.partition(".")[0]
    wanted = _wanted(ns, slot or name, full, force, left_out, opens)
    run = Import(stack_settings(*_PARTS), wanted)

    def imported(stream: IO[bytes]) -> None:
        run.run(str(file), _with(JsonLines(iter_lines(decompressed(stream)))), None, as_json=as_json)

    if file == Path("-"):
        imported(sys.stdin.buffer)
    else:
        with file.open("rb") as stream:
            imported(stream)


@click.command(cls=Command)
@click.argument("folder", type=_FOLDER, metavar="DIR")
@click.option(
    "--as", "kind", type=click.Choice(["insights", "chunks"]), required=True, help="Import as insights or as chunks."
)
@click.option("--rev", default="HEAD", show_default=True, metavar="REVISION", help="The commit to import.")
@click.option("--channel", metavar="ID", help="Channel of the insights [default: the repository's name].")
@click.option("--ns", metavar="NS", help="Namespace of the chunks.")
@_slot
@_full
@_force
@_left_out
@_open
@_include
@_url
@json_option
def git(
    folder: Path,
    kind: str,
    rev: str,
    channel: str | None,
    ns: str | None,
    slot: str | None,
    full: bool,
    force: bool,
    left_out: str,
    opens: bool,
    include: tuple[str, ...],
    url: str | None,
    as_json: bool,
) -> None:
    """Publish a local git repository: its commits as insights, or the documents of a commit as chunks.

    As insights, each commit is one of the repository's channel, with its subject and the time it was committed. As
    chunks, a source is a file of the commit, known by its path from DIR, as `import files` has it; what is not
    committed is left out. Importing again changes nothing.
    """
    from highwater.connectors.sources.git import Commit, Repository

    context = click.get_current_context()
    if kind == "insights":
        if ns or slot or full or force or opens or include or url or left_out != COUNT:
            names = "--ns, --slot, --full, --force, --open, --left-out, --include and --url"
            raise click.UsageError(f"{names} need --as chunks", context)
        _publish_insights(Repository(folder, rev), channel, as_json=as_json)
        return
    if ns is None or channel is not None:
        raise click.UsageError("--as chunks needs --ns, and excludes --channel", context)
    repository = Repository(folder, rev)
    wanted = _wanted(ns, slot or repository.name, full, force, left_out, opens, lasts=True)
    origin = Commit(repository, patterns=include, url=url)
    Import(stack_settings(*_PARTS), wanted).run(str(folder), _with(origin), origin.identity, as_json=as_json)


@click.command(cls=Command)
@click.argument("repository", metavar="OWNER/REPO")
@click.option("--what", type=click.Choice(_KINDS), required=True, help="What to import.")
@_ns
@_slot
@_full
@_force
@_left_out
@_open
@click.option(
    "--pages", type=click.IntRange(min=1), default=_PAGES, show_default=True, help="Maximum number of pages of 100."
)
@click.option("--since", metavar="TIME", help="Only what changed since then (ISO 8601): issues, comments, commits.")
@click.option("--cursor", metavar="URL", help="Continue from this cursor of an incomplete import.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=_WAIT_SECONDS,
    show_default=True,
    help="Seconds to wait for GitHub's limits.",
)
@click.option("--refresh", is_flag=True, help="Also read pages that have not changed since the last import.")
@click.option("--api-url", metavar="URL", help="The API [default: https://api.github.com].")
@json_option
def github(
    repository: str,
    what: str,
    ns: str,
    slot: str | None,
    full: bool,
    force: bool,
    left_out: str,
    opens: bool,
    pages: int,
    since: str | None,
    cursor: str | None,
    wait: float,
    refresh: bool,
    api_url: str | None,
    as_json: bool,
) -> None:
    """Publish issues, pull requests, comments, releases or commits of a GitHub repository as chunks.

    Each of them is a source. GITHUB_TOKEN, if set, is used. Unchanged pages are not read again.
    An incomplete import (--pages, GitHub's limits, GitHub unavailable) marks nothing for deletion and
    prints the cursor to continue from.
    """
    from highwater.connectors.sources.github import API_URL, KINDS, Listing, is_repository
    from highwater.connectors.sources.github_pages import GitHubApi

    context = click.get_current_context()
    if not is_repository(repository):
        raise click.UsageError(f"{repository!r} is not OWNER/REPO", context)
    if since is not None and (cursor is not None or not KINDS[what].takes_since):
        raise click.UsageError(f"--since does not apply to {what}, nor with --cursor", context)
    since = None if since is None else _since(since)
    wanted = _wanted(ns, slot or repository, full, force, left_out, opens)
    settings = stack_settings(*_PARTS)
    url = api_url or API_URL
    limits: dict[str, Any] = {"pages_max": pages, "since": since, "cursor": cursor}

    async def use(known: Remembered, draw: Draw) -> None:
        async with GitHubApi(url, token=settings.github_token, wait_seconds=wait) as api:
            was = {} if refresh else known.pages
            await draw(Listing(api, repository, what, known=was, needs_full=full, **limits))

    Import(settings, wanted).run(repository, use, ("github", f"{repository}/{what}", url.rstrip("/")), as_json=as_json)


def _with(origin: Origin) -> UseOrigin:
    """Return an origin that needs no setup or cleanup."""

    async def use(_: Remembered, draw: Draw) -> None:
        await draw(origin)

    return use


def _wanted(
    ns: str, slot: str, full: bool, force: bool, left_out: str, opens: bool, *, lasts: bool = False
) -> ImportOptions:
    wanted = ImportOptions(ns, slot, asks_full=full, forces=force, lasts=lasts, left_out=left_out, opens=opens)
    wanted.check()
    return wanted


def _since(value: str) -> str:
    from highwater.schemas.envelope import iso_from_ms, ms_from_iso

    try:
        return iso_from_ms(ms_from_iso(value) // 1000 * 1000)
    except (ValueError, OverflowError) as error:
        raise click.UsageError(f"--since {value!r} is not an ISO 8601 time", click.get_current_context()) from error


def _publish_insights(repository: Repository, channel: str | None, *, as_json: bool) -> None:
    """Publish every commit as an insight and wait for the acknowledgements, even after Ctrl-C."""
    from highwater.api.command.publishing import EventPublisher, Publisher, codec_of
    from highwater.connectors.sources.chunked import Fault
    from highwater.connectors.sources.git import INSIGHT, insights
    from highwater.schemas.errors import HighwaterError, InvalidEventError
    from highwater.schemas.topics import TOPICS
    from highwater.streams.clock import ProductClock
    from highwater.streams.feeds.validation import check_channel
    from highwater.streams.validation import check_event

    name = channel or repository.name
    try:
        check_channel("--channel", name)
    except InvalidEventError as error:
        raise click.UsageError(str(error), click.get_current_context()) from error
    settings = stack_settings(*_PARTS)
    codec = asyncio.run(codec_of(settings, (INSIGHT,)))
    publisher, faults = Publisher(kafka_client(settings)), Faults()
    hand_over = EventPublisher(TOPICS[INSIGHT], publisher, codec, ProductClock(settings.clock_file))
    is_interrupted, problem = False, None
    try:
        with progress("publishing commits", None) as bar:
            for done, found in enumerate(insights(repository, name)):
                if done % _BAR_EVERY_COMMITS == 0:
                    bar.update(done)
                if isinstance(found, Fault):
                    faults.add(found.where, found.why)
                    continue
                try:
                    check_event(INSIGHT, found, embedding_dimensions=settings.embedding_dimensions)
                    hand_over(found, name)
                except InvalidEventError as error:
                    faults.add(f"commit {found['insight_id']}", f"{error} [{error.reason}]")
    except KeyboardInterrupt:
        is_interrupted = True  # waits for records in flight; a second Ctrl-C ends that too
    except HighwaterError as error:
        problem = error
    publisher.flush()
    faults.conclude()
    if problem is not None:
        raise CommandFailedError(
            f"{problem}; {counted(publisher.acknowledged, 'commit was', 'commits were')} published"
        ) from problem
    _tell_insights(name, publisher.acknowledged, faults, list(publisher.positions().values()), is_interrupted, as_json)


def _tell_insights(
    name: str, published: int, faults: Faults, positions: list[str], is_interrupted: bool, as_json: bool
) -> None:
    rejections = f", {faults.count:,} rejected" if faults.count else ""
    if as_json:
        told = {"channel": name, "insights": published, "rejected": faults.count, "faults": faults.shown}
        print_json({**told, "positions": positions})
    elif is_interrupted:
        warn(f"interrupted: {counted(published, 'insight')} of {name} {agreed(published, 'was', 'were')} published")
    else:
        say(f"imported {printable(name)}: {counted(published, 'insight')}{rejections}")
        for position in positions:
            say(f"  {position}")
    if is_interrupted:
        click.get_current_context().exit(INTERRUPTED)
    if faults.count:
        click.get_current_context().exit(FAILED)
