"""Printing: tables for people, JSON for programs, a progress bar only on a terminal.

Invariant: every text that a command prints passes through this module, and control characters in it are escaped, never
interpreted: any text may have come from outside. No other module of a command prints (`tests/contract/test_terminal.py`).
"""

from __future__ import annotations

import codecs
import io
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Protocol, cast

import click

from highwater.streams.printable import printable, printable_lines

# A pipe has no width; none of our output is wider than this, so nothing is wrapped in a pipe.
_PIPE_COLUMNS = 10_000


def print_json(document: Any) -> None:
    """Print one JSON document on one line."""
    import orjson

    from highwater.schemas.exact_json import LongNumber, json_default

    def plain(value: Any) -> Any:
        return json_default(value) if isinstance(value, LongNumber) else str(value)

    text = orjson.dumps(document, default=plain).decode()
    click.echo(text if text.isprintable() else "".join(map(_json_sign, text)))


def _json_sign(sign: str) -> str:
    """Return a character of a JSON document as a terminal shows it; a program reads the same."""
    if sign.isprintable():
        return sign
    units = sign.encode("utf-16-be")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))


def say(text: Any = "", *, err: bool = False) -> None:
    """Print lines for people; their ends and tabs stay."""
    click.echo(printable_lines(str(text)), err=err)


def output_file() -> BinaryIO:
    """Return the standard output for a file; on a terminal its control characters are escaped."""
    return cast("BinaryIO", _ShownFile() if sys.stdout.isatty() else sys.stdout.buffer)


class _ShownFile(io.RawIOBase):
    """Text in UTF-8 for a terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        click.echo(printable_lines(self._decoder.decode(bytes(content))), nl=False)
        return len(content)


def print_result(document: Any, *, as_json: bool, line: str) -> None:
    """Print the document as JSON, or one line with the value that a script needs."""
    if as_json:
        print_json(document)
    else:
        say(printable(line))


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
    say(printable(line), err=True)


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
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(escape(printable(what)), total=total)

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
    click.confirm(printable_lines(question), abort=True, err=True)
