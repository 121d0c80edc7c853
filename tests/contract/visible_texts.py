"""Every text that a user reads, with its place: OpenAPI, help, settings, metrics, errors, labels, events."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from highwater.api.app import create_app
from highwater.api.cli.main import highwater
from highwater.schemas.avro_files import schema_text
from highwater.schemas.topics import TOPICS
from highwater.streams import telemetry
from highwater.streams.alert_rules import ALERTS
from highwater.streams.dashboard_panels import ROWS
from highwater.streams.settings import Settings, read_settings
from tests import ROOT

_WORDS_OF_OPENAPI = ("summary", "description")  # a title repeats the name of a member, which the contract fixes
# Folders whose programs raise errors that a user reads.
_PROGRAMS = ("api", "connectors", "deploy", "schemas", "streams")
# Pages and commands whose literals are labels and messages.
_PAGES = ("api/dashboard", "api/readers", "api/core/plain_pages.py", "api/core/problems.py")
_COMMANDS = ("api/cli", "api/command", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("api/*/cli_*.py")))

# Modules with advice that is not raised.
_ADVISING = (
    "api/cli/checks.py",
    "connectors/kafka/groups.py",
    "connectors/kafka/positions.py",
    "deploy/local",
    "schemas/topics.py",
    "streams/preflight.py",
)

# Words that a question or a language model's answer may have, and instructions to a model.
_WORDS_OF_OTHERS = ("streams/queries/local_model.py", "streams/queries/words.py", "streams/jobs/decks.py")


class Text(NamedTuple):
    """Words for a user, and their place."""

    where: str
    text: str


def all_texts() -> list[Text]:
    """All of them."""
    return [
        *of_openapi(create_app(read_settings({})).openapi()),
        *of_commands(highwater),
        *of_settings(),
        *of_metrics(),
        *of_alerts(),
        *of_errors(),
        *of_pages(),
        *of_events(),
    ]


def of_openapi(node: Any, path: str = "openapi") -> Iterator[Text]:
    """Summaries and descriptions at any depth."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in _WORDS_OF_OPENAPI and isinstance(value, str):
                yield Text(f"{path} {key}", value)
            else:
                yield from of_openapi(value, f"{path}/{key}")
    elif isinstance(node, list):
        for place, value in enumerate(node):
            yield from of_openapi(value, f"{path}/{place}")


def of_commands(command: click.Command, name: str = "highwater") -> Iterator[Text]:
    """Help of a command, of its options, and of the commands in it."""
    for text in (command.help, command.short_help, command.epilog):
        if text:
            yield Text(f"{name} --help", text)
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.help:
            yield Text(f"{name} {parameter.opts[0]}", parameter.help)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            assert inner is not None
            yield from of_commands(inner, f"{name} {each}")


def of_settings() -> Iterator[Text]:
    """The output of `highwater doctor --settings` for each."""
    for field in Settings.__dataclass_fields__.values():
        yield Text(f"setting {field.metadata['name']}", field.metadata["about"])


def of_metrics() -> Iterator[Text]:
    """HELP of each metric."""
    for metric in vars(telemetry).values():
        if hasattr(metric, "_documentation"):
            yield Text(f"metric {metric._name}", metric._documentation)


def of_alerts() -> Iterator[Text]:
    """Summaries of alerts, and titles of panels."""
    for alert in ALERTS:
        yield Text(f"alert {alert.name}", alert.summary)
    for row in ROWS:
        yield Text("dashboard of Grafana", repr(row))


def of_events() -> Iterator[Text]:
    """The texts about each topic's events, and the documentation of their fields: in the console, `describe` and
    `/asyncapi.json`.
    """
    for topic in TOPICS.values():
        yield Text(f"topic {topic.name}", topic.about)
        yield from _of_schema(json.loads(schema_text(topic.schema)), topic.schema)


def _of_schema(node: Any, path: str) -> Iterator[Text]:
    if isinstance(node, dict):
        if "doc" in node:
            yield Text(f"{path} {node['name']}", node["doc"])
        for value in node.values():
            yield from _of_schema(value, path)
    elif isinstance(node, list):
        for value in node:
            yield from _of_schema(value, path)


def _trees(*places: str) -> Iterator[tuple[Path, ast.Module]]:
    for place in places:
        root = ROOT / place
        for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))


def of_errors() -> Iterator[Text]:
    """Literals in `raise SomethingError(...)`, and docstrings of errors, which are their messages by default."""
    for path, tree in _trees(*_PROGRAMS):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and (text := ast.get_docstring(node)):
                yield Text(f"{path} {node.name}", text)
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                yield from (Text(f"{path}:{node.lineno}", text) for text in literals(node.exc))


def of_advice() -> Iterator[Text]:
    """What an operator is advised to do: the remedies of `doctor`, errors, the lines of the local stack, and runbooks."""
    yield from of_errors()
    for path, tree in _trees(*_ADVISING):
        _drop_docstrings(tree)
        yield from (Text(f"{path}", text) for text in literals(tree))
    for page in sorted((ROOT / "docs" / "runbooks").glob("*.md")):
        yield Text(page.name, page.read_text(encoding="utf-8"))


def of_pages() -> Iterator[Text]:
    """Literals of pages and of what commands print, docstrings apart."""
    for path, tree in _trees(*_PAGES, *_COMMANDS):
        _drop_docstrings(tree)
        yield from (Text(f"{path}", text) for text in literals(tree))


def of_literals() -> Iterator[Text]:
    """Every literal of the product with several words: messages, reasons, effects, lines of the log; docstrings apart."""
    for path, tree in _trees(*_PROGRAMS):
        if str(path) in _WORDS_OF_OTHERS:
            continue
        _drop_docstrings(tree)
        yield from (Text(f"{path}", text) for text in literals(tree) if text.count(" ") > 1)


def _drop_docstrings(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            body.pop(0)


def literals(node: ast.AST) -> Iterator[str]:
    """Texts in the code below; what a formatted one puts in is an ellipsis."""
    if isinstance(node, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values]
        yield "".join(parts)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):  # a text may be within an expression
                yield from literals(part.value)
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from literals(child)
