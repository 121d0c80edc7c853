"""`highwater sql`: one SELECT over topics and read models, to the terminal, a pipe or a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from highwater.api.command.command import Command, CommandFailedError, json_option
from highwater.api.command.connection import kafka_client, stack_settings
from highwater.api.command.terminal import output_file, print_json, print_table, warn
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from highwater.connectors.sql.engine import Answer
    from highwater.connectors.sql.query_task import Sources

_FORMATS = ("table", "jsonl", "csv", "parquet")
_SUFFIXES = {".json": "jsonl", ".ndjson": "jsonl", ".pq": "parquet"}
# The most that a person reads of a table; a file or a pipe gets all rows, up to a limit on the cost of a mistake.
_TABLE_ROWS, _FILE_ROWS = 1_000, 10_000_000
_SECONDS = 120.0


class _SqlCommand(Command):
    """A query that begins with a comment is not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What begins with `--` and a space is given a line before it."""
        return super().parse_args(
            ctx, [f"\n{one}" if one.startswith("--") and one[2:3].isspace() else one for one in args]
        )


@click.command(cls=_SqlCommand)
@click.argument("query", required=False)
@click.option("--tables", "lists_tables", is_flag=True, help="List the tables and their columns instead.")
@click.option(
    "--format", "kind", type=click.Choice(_FORMATS), help="Output format [default: by file name, else a table]."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Output file [default: `-`, standard output].")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Maximum number of rows (default: {_TABLE_ROWS:,} for a table or --json, {_FILE_ROWS:,} otherwise).",
)
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=0.1),
    default=_SECONDS,
    show_default=True,
    help="Time limit in seconds.",
)
@json_option
def sql(
    query: str | None,
    lists_tables: bool,
    kind: str | None,
    output: Path | None,
    limit: int | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Run one SELECT over topics and read models (DuckDB's SQL); `-` reads it from standard input.

    The topic feeds.insight-ingested is the table feeds.insight_ingested. Its columns are the fields of the events and _partition,
    _offset, _timestamp, _key, _headers and _undecodable. Conditions on _timestamp, _partition and _offset decide how much of the
    log is read. Read models are the tables models.users, models.channels and others; --tables lists all.

    A topic of another application is a table of its own name, in quotes where it has dots or dashes: FROM "orders-v1". Its
    columns are those with an underscore, _value (JSON), _value_bytes, and the fields of its schema if the registry has one.

    \b
    highwater sql "SELECT channel_id, count(*) FROM feeds.insight_ingested
                   WHERE _timestamp > now() - INTERVAL 1 HOUR GROUP BY ALL ORDER BY 2 DESC"
    """  # noqa: D301 - the escape is click's
    if (query is None) is not lists_tables:
        raise click.UsageError("give either a query or --tables", click.get_current_context())
    output = None if output is None or str(output) == "-" else output
    if as_json and output is None and kind is not None:
        raise click.UsageError("--json is a format of its own; leave out --format", click.get_current_context())
    kind = kind or _format_of(output)
    if output is None and kind == "parquet" and sys.stdout.isatty():
        raise click.UsageError("a terminal cannot show Parquet; use --output FILE", click.get_current_context())
    text = "SHOW TABLES" if query is None else sys.stdin.read() if query == "-" else query
    from highwater.connectors.sql.engine import answered
    from highwater.connectors.sql.query_task import Limits

    rows_max = limit or (_TABLE_ROWS if kind == "table" or (as_json and output is None) else _FILE_ROWS)
    with answered(text, _sources(), Limits(rows_max, seconds)) as answer:
        _show(answer, kind, output, as_json=as_json)


def _sources() -> Sources:
    from highwater.connectors.sql.query_task import Sources

    settings = stack_settings("kafka", "schema_registry")
    return Sources(kafka_client(settings), settings.registry_access(), settings.database)


def _format_of(output: Path | None) -> str:
    suffix = "" if output is None else output.suffix.lower()
    found = _SUFFIXES.get(suffix, suffix.removeprefix("."))
    return found if found in _FORMATS else "table" if output is None else "jsonl"


def _show(answer: Answer, kind: str, output: Path | None, *, as_json: bool) -> None:
    if output is None and as_json:
        rows = _rows(answer)
        summary = answer.summary()
        print_json({"columns": answer.columns, "data": rows, **summary})
        _warn_of_transactions(summary)
        return
    if output is not None:
        from highwater.connectors.replay.output import whole_file

        try:
            with whole_file(output) as file:
                _write(answer, kind, file)
        except OSError as error:
            raise CommandFailedError(f"{output} was not written: {error.strerror or error}") from error
    elif kind == "table":
        _print(answer)
    else:
        _write(answer, kind, output_file())
        sys.stdout.buffer.flush()
    summary = answer.summary()
    if as_json:
        print_json({"columns": answer.columns, "to": str(output), **summary})
    else:
        warn(summary_line(summary))
    _warn_of_transactions(summary)


def _warn_of_transactions(summary: dict[str, Any]) -> None:
    for one in summary["scanned"]:
        for sentence in one["open_transactions"]:
            warn(f"highwater: {sentence}")


def _rows(answer: Answer) -> list[list[Any]]:
    from highwater.connectors.sql.answers import rows_of

    return [row for batch in answer.batches() for row in rows_of(batch)]


def _print(answer: Answer) -> None:
    import pyarrow as pa

    from highwater.connectors.sql.answers import cell

    numbers = [
        field.name
        for field in answer.schema
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
    ]
    print_table(answer.schema.names, [[cell(value) for value in row] for row in _rows(answer)], right=numbers)


def _write(answer: Answer, kind: str, file: BinaryIO) -> None:
    """Write the answer in a format other than a table.

    Raises:
        CommandFailedError: the format is the table, which a file is not.
    """
    from highwater.connectors.sql.answers import WRITERS

    writer = WRITERS["csv" if kind == "table" else kind](file, answer.schema)
    for batch in answer.batches():
        writer.write(batch)
    writer.close()


def summary_line(summary: dict[str, Any]) -> str:
    """What a query took, in one line."""
    scanned: Sequence[dict[str, Any]] = summary["scanned"]
    read = ", ".join(f"{one['scanned']:,} of {one['held']:,} records of {one['topic']}" for one in scanned)
    cut = " (cut off; --limit allows more)" if summary["is_cut_off"] else ""
    return f"{counted(summary['rows'], 'row')}{cut} in {summary['seconds']:.1f} s" + (
        f"; scanned {read}" if read else ""
    )
