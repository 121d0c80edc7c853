"""Printing: tables for people, JSON for programs, a progress bar only on a terminal.

Invariant: data from the log or from a store is shown with its control characters escaped, never interpreted.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import click

# A pipe has no width; none of our output is wider than this, so nothing is wrapped in a pipe.
_PIPE_COLUMNS = 10_000


def print_json(document: Any) -> None:
    """Print one JSON document on one line."""
    import orjson

    from highwater.schemas.exact_json import LongNumber, json_default

    def plain(value: Any) -> Any:
        return json_default(value) if isinstance(value, LongNumber) else str(value)

    click.echo(orjson.dumps(document, default=plain).decode())


def print_result(document: Any, *, as_json: bool, line: str) -> None:
    """Print the document as JSON, or one line with the value that a script needs."""
    if as_json:
        print_json(document)
    else:
        click.echo(printable(line))


def printable(value: Any) -> str:
    """Return a value as text with control, format and separator characters escaped, since a terminal interprets them."""
    text = "" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """Print a table; the columns named in `right` hold numbers. On a terminal that is too narrow for the words each row
    is a list.
    """
    from highwater.api.command.tables import is_table, table_lines

    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else _PIPE_COLUMNS
    lines = table_lines(columns, [[printable(cell) for cell in row] for row in rows], width, right)
    if is_terminal and is_table(lines, columns):
        lines[0] = click.style(lines[0], bold=True)
    click.echo("\n".join(lines))


def print_list(
    documents: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, right: Sequence[str] = ()
) -> None:
    """Print documents of a list: one per line as JSON, or these members of each in a table."""
    if as_json:
        for one in documents:
            print_json(one)
        return
    print_table(columns, [[one[name] or "" for name in columns] for one in documents], right=right)


def warn(line: str) -> None:
    """Print a line for people to standard error."""
    click.echo(printable(line), err=True)


class Bar(Protocol):
    """A progress bar."""

    def update(self, done: float) -> None:
        """Set the progress."""


class _NoBar:
    def update(self, done: float) -> None:
        """Do nothing: no terminal."""


@contextmanager
def progress(what: str, total: float | None) -> Iterator[Bar]:
    """Show a bar on standard error if that is a terminal; a `total` of None is unknown."""
    if not sys.stderr.isatty():
        yield _NoBar()
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=total)

        class _RichBar:
            def update(self, done: float) -> None:
                shown.update(task, completed=done)

        yield _RichBar()


def confirm(question: str, *, assume_yes: bool) -> None:
    """Ask before an irreversible action; without a terminal `--yes` is required.

    Raises:
        click.UsageError: there is no terminal to ask.
        click.Abort: the answer was no.
    """
    if assume_yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Use --yes", click.get_current_context(silent=True))
    click.confirm(question, abort=True, err=True)
