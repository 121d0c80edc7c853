"""docs/tasks.md: tasks, each with a command that exists and a test in a browser that exists."""

from __future__ import annotations

import ast
import re
import shlex

import click
import pytest

from highwater.api.cli.main import highwater
from tests import ROOT

_ROW = re.compile(
    r"^\| (\d+) \| ([^|]+) \| [^|]+ \| `highwater ([^`]+)` \| `(test_\w+\.py)::(test_\w+)` \|$", re.MULTILINE
)
TASKS = _ROW.findall((ROOT / "docs/tasks.md").read_text(encoding="utf-8"))


def fault_of(line: str) -> str | None:
    """Return the fault in the words of a command, without running it; None if there is none."""
    words, command = shlex.split(line), highwater
    context = click.Context(command, info_name="highwater")
    try:
        while isinstance(command, click.Group):
            _, found, words = command.resolve_command(context, words)
            assert found is not None
            command = found
            context = click.Context(command, info_name=command.name, parent=context)
        options = {text for parameter in command.params for text in (*parameter.opts, *parameter.secondary_opts)}
    except click.ClickException as error:
        return error.message
    unknown = [word for word in words if word.startswith("--") and word not in options]
    return f"{command.name} has no {unknown[0]}" if unknown else None


def test_there_are_twenty_seven():
    """Numbered from 1; each row has the form that this test reads."""
    assert [int(row[0]) for row in TASKS] == list(range(1, 28))


@pytest.mark.parametrize("row", TASKS, ids=lambda row: row[0])
def test_the_command_exists(row: tuple[str, ...]):
    """With its options."""
    assert fault_of(row[2]) is None


@pytest.mark.parametrize("row", TASKS, ids=lambda row: row[0])
def test_the_test_exists(row: tuple[str, ...]):
    """In the folder of tests in a browser."""
    source = (ROOT / "tests/browser/dashboard" / row[3]).read_text(encoding="utf-8")
    assert row[4] in {one.name for one in ast.parse(source).body if isinstance(one, ast.FunctionDef)}


def test_a_wrong_command_is_a_fault():
    """A command, a command of a group, an option that do not exist."""
    for line in ("replya TOPIC", "dlq rewind TOPIC", "replay TOPIC --were CEL"):
        assert fault_of(line) is not None, line
