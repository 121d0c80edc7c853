"""Tables on terminals of any width: no word is broken and nothing is cut off."""

from __future__ import annotations

import json
from io import StringIO

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from highwater.api.cli import schemas
from highwater.api.cli.top import _screen
from highwater.api.command.command import CommandFailedError, run_command
from highwater.api.command.tables import is_table, table_lines
from highwater.api.command.terminal import output_file, print_json
from highwater.streams.log_lines import escaped
from highwater.streams.wording import counted

COLUMNS = ("topic", "events", "about")
ROWS = [("feeds.insight-ingested", "1,204", "an insight was ingested and stored"), ("streams.tick", "9", "a tick")]


def test_a_wide_terminal_has_a_table():
    """Numbers to the right, text to the left."""
    assert table_lines(COLUMNS, ROWS, 100, right=["events"]) == [
        "topic                   events  about",
        "feeds.insight-ingested   1,204  an insight was ingested and stored",
        "streams.tick                 9  a tick",
    ]


def test_a_narrow_terminal_wraps_between_words():
    """The widest column gives first."""
    assert table_lines(COLUMNS, ROWS, 44, right=["events"]) == [
        "topic                   events  about",
        "feeds.insight-ingested   1,204  an insight",
        "                                was ingested",
        "                                and stored",
        "streams.tick                 9  a tick",
    ]


def test_a_terminal_too_narrow_for_words_has_lists():
    """Each row by itself; empty cells are left out."""
    assert table_lines(COLUMNS, [ROWS[0], ("streams.tick", "", "a tick")], 39) == [
        "topic   feeds.insight-ingested",
        "events  1,204",
        "about   an insight was ingested and stored",
        "",
        "topic   streams.tick",
        "about   a tick",
    ]
    assert table_lines(COLUMNS, [], 1) == []


CELLS = st.text(alphabet="ab 世-", max_size=20)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=5), st.integers(1, 120))
def test_at_any_width_every_word_is_there(rows, width):
    """A table is never wider than the terminal, also with letters that take two columns."""
    lines = table_lines(COLUMNS, rows, width, right=["events"])
    named = [f"{name} {cell}" for row in rows for name, cell in zip(COLUMNS, row, strict=True) if cell]
    expected = [*COLUMNS, *(cell for row in rows for cell in row)] if is_table(lines, COLUMNS) else named
    assert sorted(" ".join(expected).split()) == sorted(" ".join(lines).split())
    if is_table(lines, COLUMNS):
        assert all(cell_len(line) <= width for line in lines)


@pytest.mark.parametrize("width", [40, 200])
def test_the_screen_of_top_cuts_lines(width: int):
    """A line that is too long ends with an ellipsis instead of wrapping, since the number of lines is limited."""
    told = {
        "topics": [{"topic": "feeds.insight-ingested", "per_second": 12.5, "records": 4_000}],
        "groups": [{"group": "documents", "events": 3, "seconds": None, "problem": None}],
        "slowest": [{"work": "route /api/users/{user}/feed", "p95_ms": 3.5, "mean_ms": 1.0, "count": 7}],
        "memory": [{"process": "api", "bytes": 90 << 20}],
        "problems": ["Kafka does not answer"],
    }
    console = Console(file=StringIO(), width=width, height=40)
    console.print(_screen(told, 10))
    shown = console.file.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    assert {"12.5", "4,000", "documents", "90"} <= set(shown.split())
    assert "Kafka does not answer" in shown


@pytest.mark.parametrize(("number", "words"), [(0, "0 records"), (1, "1 record"), (1_200, "1,200 records")])
def test_things_are_counted_in_words(number: int, words: str) -> None:
    """One of them is one."""
    assert counted(number, "record") == words


EVIL = "// \x1b]0;PWNED\x07\n\tstring a = 1; \u202e\x9b1m"


@pytest.mark.parametrize("diff", [False, True], ids=["text", "diff"])
def test_a_schema_is_shown_with_its_control_characters_escaped(monkeypatch: pytest.MonkeyPatch, diff: bool):
    """Any producer may register one; its lines and tabs stay."""
    version = {"version": 1, "schema_id": 1, "kind": "PROTOBUF", "text": EVIL}
    found = {
        "subject": "s",
        "compatibility": None,
        "versions": [version],
        "from": 1,
        "to": 2,
        "fields": [],
        "lines": [EVIL],
    }
    monkeypatch.setattr(schemas, "_run", lambda _: found)
    show = click.command()(lambda: schemas._diff("s", None, None, False) if diff else schemas._show("s", False))
    shown = CliRunner().invoke(show, color=True).output
    assert shown.endswith("// \\x1b]0;PWNED\\x07\n\tstring a = 1; \\u202e\\x9b1m\n")


def test_an_error_of_a_command_has_no_control_characters(capsys: pytest.CaptureFixture[str]):
    """They are in what it quotes."""

    @click.group()
    def group() -> None:
        pass

    @group.command("fail")
    def fail() -> None:
        raise CommandFailedError(f"the registry says {EVIL}")

    assert run_command(group, ["fail"]) == 1
    error = capsys.readouterr().err
    assert "\\x1b]0;PWNED\\x07" in error
    assert error.removesuffix("\n").isprintable()


def test_json_for_a_terminal_is_the_same_json(capsys: pytest.CaptureFixture[str]):
    """What a terminal would interpret is written as JSON escapes it."""
    print_json({"a": EVIL + "\U000e0001é"})
    shown = capsys.readouterr().out.removesuffix("\n")
    assert shown.isprintable()
    assert json.loads(shown) == {"a": EVIL + "\U000e0001é"}


def test_a_file_on_a_terminal_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """A replay as CSV, the answer of SQL and a blob are escaped there, also letters whose bytes come apart."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    file, content = output_file(), "é\x1b[2J,中\n".encode()
    for part in (content[:1], content[1:8], content[8:]):
        file.write(part)
    assert capsys.readouterr().out == "é\\x1b[2J,中\n"


def test_a_line_of_the_log_on_a_terminal_has_no_control_characters():
    """In its message and in its values."""
    line = escaped(None, "info", {"event": "x\x1b[2J", "detail": EVIL, "count": 3})
    assert line == {"event": "x\\x1b[2J", "detail": "// \\x1b]0;PWNED\\x07\n\tstring a = 1; \\u202e\\x9b1m", "count": 3}
