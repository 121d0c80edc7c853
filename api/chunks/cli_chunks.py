"""`highwater chunks`: ingest a file through the running API, search, and show the outcome of ingests and the age of
namespaces.

Invariants. The chunks of a source are sent in the order of their lines, and a source is finished only when the whole
file was accepted; an interrupted command therefore leaves an unfinished ingest. All sources of a file are one ingest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from highwater.api.command.client import any_key, api_client, ask_api, path_segment, request
from highwater.api.command.command import FAILED, INTERRUPTED, CommandFailedError, Group, json_option
from highwater.api.command.connection import own_settings
from highwater.api.command.terminal import print_json, print_result, print_table, say, warn
from highwater.streams.printable import printable
from highwater.streams.wording import counted

if TYPE_CHECKING:
    import httpx2

_SUBMITTED = "chunks.chunk-submitted"
# Chunks per request: one page of text each, some megabytes.
_CHUNKS_PER_REQUEST = 500
# At most this many bytes: half of what the API accepts.
_BYTES_PER_REQUEST = 8 << 20
_LOOK_SECONDS = 0.2
_TIMEOUT_SECONDS_DEFAULT = 60.0
# Shortened for people; `--json` shows the whole text.
_SHOWN_CHARACTERS = 100


@click.group(cls=Group)
def chunks() -> None:
    """Ingest and search chunks of documents, and show their lifecycle."""


@chunks.command()
@click.argument("file", type=click.File("rb"))
@click.option("--ns", help="Default namespace for chunks that do not name one.")
@click.option("--slot", help="Default slot for chunks that do not name one.")
@click.option("--source", "source_id", help="Default source for chunks that do not name one.")
@click.option("--ingest-id", help="Id of the ingest; repeating an ingest under its id changes nothing.")
@click.option("--full", is_flag=True, help="The file has all chunks of each source: others are marked for deletion.")
@click.option("--force", is_flag=True, help="With --full, also mark all chunks of an empty source.")
@click.option(
    "--truncated", is_flag=True, help="The file has only a part of the chunks: nothing is marked for deletion."
)
@click.option("--no-wait", is_flag=True, help="Do not wait for the outcome.")
@click.option(
    "--timeout-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=_TIMEOUT_SECONDS_DEFAULT,
    show_default=True,
    help="How long to wait for the outcome.",
)
@json_option
def ingest(
    file: IO[bytes],
    ns: str | None,
    slot: str | None,
    source_id: str | None,
    ingest_id: str | None,
    full: bool,
    force: bool,
    truncated: bool,
    no_wait: bool,
    timeout_seconds: float,
    as_json: bool,
) -> None:
    """Ingest the chunks in FILE (JSON lines, may be gzipped; `-` = stdin); exit status 1 if any was rejected.

    A line has content and, optionally, chunk_no (else its place in its source), title, url, embedding, published_at, ns, slot,
    source_id.
    """
    settings = own_settings()
    sending = _Sending({"ns": ns, "slot": slot, "source_id": source_id}, ingest_id)
    with api_client(settings, any_key(settings)) as client:
        try:
            for number, document in _documents(file):
                sending.take(client, number, document)
            sending.finish(client, {"full": full, "force": force, "truncated": truncated})
        except KeyboardInterrupt:
            warn(f"ingest {sending.ingest_id} was interrupted; an unfinished ingest marks nothing")
            click.get_current_context().exit(INTERRUPTED)
        taken = {"ingest_id": sending.ingest_id, "positions": sorted(sending.positions.values())}
        if no_wait:
            print_result(taken, as_json=as_json, line=str(sending.ingest_id))
            return
        found = _waited(client, taken, sending.sources, timeout_seconds)
    print_result(found, as_json=as_json, line=_report_line(found))
    if found["failures"] or found["status"] in ("failed", "abandoned"):
        click.get_current_context().exit(FAILED)


class _Source:
    """The chunks of a source that wait to be sent, and the numbers that it has had."""

    def __init__(self) -> None:
        self.waiting: list[dict[str, Any]] = []
        self.bytes = 0
        self.numbers: set[int] = set()
        self.next = 0


class _Sending:
    """An ingest that is being sent."""

    def __init__(self, defaults: dict[str, str | None], ingest_id: str | None) -> None:
        import uuid

        self.ingest_id = ingest_id or str(uuid.uuid4())
        self.positions: dict[str, str] = {}
        self._defaults = defaults
        self._sources: dict[tuple[str, str, str], _Source] = {}

    @property
    def sources(self) -> int:
        """Return the number of sources."""
        return len(self._sources)

    def take(self, client: httpx2.Client, number: int, document: Any) -> None:
        """Add a line of the file.

        Raises:
            CommandFailedError: it is not a chunk; names the line.
        """
        from highwater.schemas.errors import InvalidEventError
        from highwater.schemas.json_events import event_from_json
        from highwater.streams.checks import check_not_blank

        if not isinstance(document, dict):
            raise CommandFailedError(f"line {number} is not a JSON object")
        named = {name: document.pop(name, default) for name, default in self._defaults.items()}
        missing = [name for name, value in named.items() if not isinstance(value, str)]
        if missing:
            raise CommandFailedError(f"line {number} has no {missing[0]}, and no default was given")
        key = (named["ns"], named["slot"], named["source_id"])
        source = self._sources.setdefault(key, _Source())
        document.setdefault("chunk_no", source.next)
        try:
            event = event_from_json(_SUBMITTED, {**named, "ingest_id": self.ingest_id, **document})
            check_not_blank("content", event["content"])
        except InvalidEventError as error:
            raise CommandFailedError(f"line {number}: {error}") from error
        source.numbers.add(document["chunk_no"])
        source.next = document["chunk_no"] + 1
        source.waiting.append(document)
        source.bytes += len(str(document.get("content"))) + len(str(document.get("embedding", "")))
        if len(source.waiting) >= _CHUNKS_PER_REQUEST or source.bytes >= _BYTES_PER_REQUEST:
            self._post(client, key, source, {"finish": False})

    def finish(self, client: httpx2.Client, said: dict[str, bool]) -> None:
        """Send the remaining chunks and the end of each source, with the common options."""
        if not self._sources and all(self._defaults.values()):
            key = (*map(str, self._defaults.values()),)
            self._sources[key[0], key[1], key[2]] = (
                _Source()
            )  # an empty file is an empty source if the options name one
        for key, source in self._sources.items():
            end = {"finish": True, "expected_count": len(source.numbers), **said}
            self._post(client, key, source, end)

    def _post(self, client: httpx2.Client, key: tuple[str, str, str], source: _Source, more: dict[str, Any]) -> None:
        ns, slot, source_id = key
        of = {"ns": ns, "slot": slot, "source_id": source_id, "ingest_id": self.ingest_id}
        answer = request(client, "POST", "/api/chunks/ingest", json={**of, **more, "chunks": source.waiting}).json()
        for position in answer["positions"]:
            self.positions[position.rpartition("/")[0]] = position  # the last one of each partition
        source.waiting, source.bytes = [], 0


def _documents(file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    """Yield the documents of a file with their line numbers.

    Raises:
        CommandFailedError: a line is not JSON.
    """
    import orjson

    from highwater.api.command.lines import decompressed, iter_lines

    for line in iter_lines(decompressed(file)):
        try:
            yield line.number, orjson.loads(line.data or b"")
        except orjson.JSONDecodeError as error:
            raise CommandFailedError(f"line {line.number} is not JSON: {error}") from error


def _waited(client: httpx2.Client, accepted: dict[str, Any], sources: int, timeout_seconds: float) -> dict[str, Any]:
    """Return the outcome of an ingest once all its sources have ended.

    Raises:
        CommandFailedError: that took too long.
    """
    import time

    import httpx2

    from highwater.streams.clock import monotonic_seconds

    path = f"/api/chunks/ingest/{path_segment(accepted['ingest_id'], 'INGEST_ID')}"
    headers = {"X-Min-Position": ",".join(accepted["positions"])}
    until = monotonic_seconds() + timeout_seconds
    try:
        while True:
            answer = client.get(path, headers=headers, params={"limit": 1})
            if answer.status_code == httpx2.codes.OK:
                found: dict[str, Any] = answer.json()
                if found["sources_done"] == found["sources_total"] >= sources:
                    return request(client, "GET", path).json()  # type: ignore[no-any-return]
            elif answer.status_code != httpx2.codes.SERVICE_UNAVAILABLE:
                request(client, "GET", path)
            if monotonic_seconds() > until:
                raise CommandFailedError(
                    f"ingest {accepted['ingest_id']} has not ended within {timeout_seconds:g} s; "
                    f"`highwater chunks show {accepted['ingest_id']}` shows its status"
                )
            time.sleep(_LOOK_SECONDS)
    except httpx2.HTTPError as error:
        raise CommandFailedError(
            f"the API does not answer ({str(error) or type(error).__name__}); the ingest continues without this command"
        ) from error
    except KeyboardInterrupt:
        warn(f"ingest {accepted['ingest_id']} continues without this command")
        click.get_current_context().exit(INTERRUPTED)


_COUNTERS = ("inserted", "updated", "unchanged", "failures", "orphaned")


def _report_line(found: dict[str, Any]) -> str:
    counted = ", ".join(f"{found[name]} {name}" for name in _COUNTERS)
    reason = f" ({found['reason']})" if found["reason"] else ""
    return f"{found['ingest_id']} {found['status']}: {counted}{reason}"


@chunks.command()
@click.argument("ingest_id")
@json_option
def show(ingest_id: str, as_json: bool) -> None:
    """Show the report of ingest INGEST_ID: counters, sources and rejected chunks."""
    found = ask_api("GET", f"/api/chunks/ingest/{path_segment(ingest_id, 'INGEST_ID')}")
    if as_json:
        print_json(found)
        return
    say(printable(_report_line(found)))
    columns = ("ns", "slot", "source_id", "status", *_COUNTERS)
    print_table(columns, [[one[name] for name in columns] for one in found["sources"]], right=_COUNTERS)
    more = found["sources_total"] - len(found["sources"])
    if more:
        warn(counted(more, "more source"))
    for one in found["failed"]:
        warn(f"{one['ns']}|{one['slot']}|{one['source_id']} {one['chunk_no']}: {one['reason']}: {one['detail']}")


@chunks.command()
@click.argument("question")
@click.option("--ns", required=True, help="Namespace to search.")
@click.option("--slot", help="Search only this slot.")
@click.option("--source", "source_ids", multiple=True, help="Search only this source (may be repeated).")
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Maximum number of results.")
@click.option("--mode", type=click.Choice(["semantic", "hybrid"]), default="hybrid", show_default=True)
@click.option("--no-rerank", is_flag=True, help="Order the results without the reranker.")
@click.option("--per-source", type=click.IntRange(1, 100), help="Maximum number of chunks per source.")
@click.option("--from", "published_from", help="Published at this time (ISO 8601) or later.")
@click.option("--to", "published_to", help="Published at this time or earlier.")
@click.option("--as-of", help="Search the texts that were stored at this time (ISO 8601).")
@json_option
def search(
    question: str,
    ns: str,
    slot: str | None,
    source_ids: tuple[str, ...],
    limit: int,
    mode: str,
    no_rerank: bool,
    per_source: int | None,
    published_from: str | None,
    published_to: str | None,
    as_of: str | None,
    as_json: bool,
) -> None:
    """Search a namespace for QUESTION."""
    settings = own_settings()
    asked = {
        "ns": ns,
        "q": question,
        "slot": slot,
        "source_id": source_ids,
        "limit": limit,
        "mode": mode,
        "rerank": not no_rerank,
        "per_source": per_source,
        "published_from": published_from,
        "published_to": published_to,
        "as_of": as_of,
    }
    params = {name: value for name, value in asked.items() if value is not None}
    with api_client(settings, any_key(settings)) as client:
        found = request(client, "GET", "/api/chunks/search", params=params).json()
    if as_json:
        print_json(found)
        return
    if as_of is not None and found["texts"] == "now":
        warn(f"former texts of {ns} are not kept from before this time: these are the current texts")
    if found["ranking"] == "reranker_unavailable":
        warn("the reranker does not answer: the results are in the order of their scores")
    if found["compared_by"] == "words":
        warn("no embedding model compares this namespace now: words decide (`highwater doctor` names the reason)")
    rows = [_result_row(one) for one in found["results"]]
    numbers = ("final", "similarity", "decay", "age days")
    print_table((*numbers, "", "source", "no", "text"), rows, right=(*numbers, "no"))


def _result_row(one: dict[str, Any]) -> list[Any]:
    text = " ".join(f"{one['title'] or ''} {one['content']}".split())
    shown = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
    scores = [f"{one[name]:.4f}" for name in ("final", "similarity", "decay")]
    return [
        *scores,
        f"{one['age_days']:.1f}",
        one["temperature"],
        f"{one['slot']}|{one['source_id']}",
        one["chunk_no"],
        shown,
    ]


@chunks.command()
@click.argument("ns", required=False)
@json_option
def lifecycle(ns: str | None, as_json: bool) -> None:
    """Show how many chunks of namespace NS, or of each, are hot, warm, cold, without a vector, marked, archived."""
    settings = own_settings()
    with api_client(settings, any_key(settings)) as client:
        found = request(client, "GET", "/api/chunks/lifecycle", params={} if ns is None else {"ns": ns}).json()
    if as_json:
        print_json(found)
        return
    numbers = (
        *("chunks", "sources", "hot", "warm", "cold", "without_embedding", "stale_embedding", "to_delete", "archived"),
        "queries_per_day",
    )
    documents = found.get("namespaces", [found])
    print_table(("ns", *numbers), [[one[name] for name in ("ns", *numbers)] for one in documents], right=numbers)
    for one in documents:
        if one["switch"] is not None:
            made, due = one["switch"], one["switch"]["due_at"] or "unknown"
            warn(
                f"{one['ns']}: {made['made']} of {one['chunks']} vectors of {made['embedding_model']} are made, "
                f"expected end {due}; "
                f"until then searches compare by {one['embedding_model']}"
            )
