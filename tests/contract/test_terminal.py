"""One way to a terminal: what a command prints passes through `api/command/terminal.py`, which escapes control characters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The door of commands, and that of the log (`log_lines.escaped`).
DOORS = frozenset({"api/command/terminal.py", "streams/telemetry.py"})
# Programs of the development of the product, whose texts are our own.
OURS = frozenset({"api/cli/authorization.py", "api/cli/alert_rules.py", "connectors/postgres/sql_files.py"})
# Text of rich whose parts are made printable: a screen that is drawn each second, and a tree.
DRAWN = {"api/cli/top.py": {"Live"}, "api/explain/cli_explain.py": {"Console"}, "api/queries/cli_ask.py": {"Console"}}
PRINTS = frozenset(
    {
        "print",
        "click.echo",
        "click.secho",
        "sys.stdout.write",
        "sys.stderr.write",
        "sys.stdout.buffer.write",
        "Live",
        "Console",
    }
)
STREAMS = frozenset({"sys.stdout", "sys.stderr", "sys.stdout.buffer"})


def printing(path: Path) -> Iterator[str]:
    """Where a module prints by itself: calls, and the streams that it hands on."""
    source = path.read_text(encoding="utf-8")
    if not any(name.rpartition(".")[2] in source for name in PRINTS | STREAMS):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            used = {name(node.func)} & PRINTS | {name(one) for one in node.args} & STREAMS
            yield from (f"{node.lineno}: {one}" for one in sorted(used))


def name(node: ast.expr) -> str:
    """A name with what it belongs to; empty for any other expression."""
    if isinstance(node, ast.Attribute):
        return f"{name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("folder", ["api", "connectors", "streams"])
def test_what_a_command_prints_passes_through_one_module(folder: str) -> None:
    """So that no text from outside reaches a terminal with its control characters."""
    found = {
        f"{module}: {line}"
        for path in (ROOT / folder).rglob("*.py")
        if (module := str(path.relative_to(ROOT))) not in OURS | DOORS
        for line in printing(path)
        if line.rpartition(" ")[2] not in DRAWN.get(module, ())
    }
    assert found == set()
