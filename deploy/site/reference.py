"""Generates the reference pages of the site from the catalogues: settings, metrics, commands, the HTTP API and errors.

Invariant: a page shows what a running process shows (`doctor --settings`, `/metrics`, `--help`, `/openapi.json`,
`/problems`), since both use the same catalogue. The pages are not committed, so none is outdated when a catalogue
changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import click
from prometheus_client.metrics import MetricWrapperBase

from highwater.api.app import create_app
from highwater.api.cli.main import highwater
from highwater.api.core.problems import KINDS
from highwater.streams import telemetry
from highwater.streams.metric_roles import ROLES_OF
from highwater.streams.settings import Settings, read_settings

_METHODS = ("get", "put", "post", "patch", "delete")


def pages() -> dict[str, str]:
    """Return the text of each page by its path below the repository."""
    return {f"docs/reference/{name}": text for name, text in _pages()}


def _pages() -> Iterator[tuple[str, str]]:
    yield "settings.md", settings_page()
    yield "metrics.md", metrics_page()
    yield "commands.md", "# Commands\n\n" + "".join(_command(highwater, "highwater", 2))
    yield "http.md", http_page(create_app(read_settings({})).openapi())
    kinds = "".join(f"- [{kind.name}](errors/{kind.name}.md): {kind.status:d}. {kind.meaning}\n" for kind in KINDS)
    yield "errors.md", f"# Errors\n\nEvery error is a problem (RFC 9457); its `type` is one of these.\n\n{kinds}"
    for kind in KINDS:
        text = (
            f"# {kind.name}\n\n{kind.status:d} {kind.status.phrase}. {kind.meaning}\n\n**What to do.** {kind.remedy}\n"
        )
        yield f"errors/{kind.name}.md", f"{text}\n[All errors](../errors.md)\n"


def cell(text: str) -> str:
    """Return text for a table cell: one line, and no bar that ends it."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|").replace("<", "&lt;")


def settings_page() -> str:
    """Return each setting with its default."""
    rows = [
        f"| `{one.metadata['name']}` | {cell(one.metadata['about'])} | {_default(one.default)} |\n"
        for one in fields(Settings)
    ]
    head = "# Settings\n\n`highwater doctor --settings` shows the values of an installation.\n\n"
    return f"{head}| name | meaning | default |\n|---|---|---|\n{''.join(rows)}"


def _default(value: object) -> str:
    if value in (None, "", ()):
        return "unset"
    return f"`{cell(','.join(map(str, value)) if isinstance(value, tuple) else str(value))}`"


def metrics_page() -> str:
    """Return each metric with its labels and the roles that report it."""
    found = [metric for metric in vars(telemetry).values() if isinstance(metric, MetricWrapperBase)]
    rows = []
    for metric in sorted(found, key=lambda one: one._name):  # noqa: SLF001 - the library has no public name of a metric
        name, labels, about = metric._name, metric._labelnames, metric._documentation  # noqa: SLF001 - nor these
        shown = ", ".join(f"`{label}`" for label in labels)
        roles = ", ".join(sorted(ROLES_OF.get(name, ())))
        rows.append(f"| `{name}` | {metric._type} | {shown} | {roles} | {cell(about)} |\n")  # noqa: SLF001 - nor this
    head = "# Metrics\n\nA counter's name ends in `_total` where it is read.\n\n"
    return f"{head}| name | type | labels | reported by | meaning |\n|---|---|---|---|---|\n{''.join(rows)}"


def _command(command: click.Command, name: str, depth: int) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    about = re.sub(r"(?m)^ +", "", command.get_help(context).partition("\n\n")[2].partition("\nOptions:")[0]).strip()
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield f"{'#' * min(depth, 4)} `{name}`\n\n{about.partition('Commands:')[0].replace('<', '&lt;')}\n\n```\n{usage}\n```\n\n"
    options = [
        (", ".join([*one.opts, *one.secondary_opts]), one.help or "")
        for one in command.params
        if isinstance(one, click.Option)
    ]
    shown = [f"| `{names}` | {cell(text)} |\n" for names, text in options]
    if shown:
        yield "| option | does |\n|---|---|\n" + "".join(shown) + "\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            if inner is not None and not inner.hidden:
                yield from _command(inner, f"{name} {each}", depth + 1)


def http_page(document: dict[str, Any]) -> str:
    """Return each operation by subject, with its parameters and answers."""
    groups: dict[str, list[str]] = {}
    for path, item in document["paths"].items():
        for method in (one for one in _METHODS if one in item):
            operation = item[method]
            groups.setdefault(next(iter(operation.get("tags", ())), "other"), []).append(
                _operation(method, path, operation)
            )
    head = (
        "# HTTP API\n\n`/openapi.json` of a running API has the same for tools, with every schema; `/docs` shows it.\n"
    )
    return head + "".join(f"\n## {tag}\n\n{''.join(texts)}" for tag, texts in sorted(groups.items()))


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    text = f"### `{method.upper()} {path}`\n\n{cell(operation.get('summary', ''))}\n\n"
    if about := operation.get("description"):
        text += f"{about.replace('<', '&lt;')}\n\n"
    if parameters := operation.get("parameters"):
        rows = [f"| `{one['name']}` | {one['in']} | {cell(one.get('description', ''))} |\n" for one in parameters]
        text += f"| parameter | in | meaning |\n|---|---|---|\n{''.join(rows)}\n"
    answers = [
        f"{status}: {cell(one.get('description', '')).rstrip('.')}"
        for status, one in sorted(operation["responses"].items())
    ]
    return f"{text}Answers: {'; '.join(answers)}.\n\n"
