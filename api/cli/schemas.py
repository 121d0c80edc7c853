"""`highwater schemas`: lists the subjects of the registry, shows the versions of one, compares two, or checks the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.command import Command, CommandFailedError, json_option
from highwater.api.command.terminal import print_json, print_table, say

if TYPE_CHECKING:
    from highwater.api.broker.sources import Sources


@click.command(cls=Command)
@click.argument("subject", required=False)
@click.option("--diff", is_flag=True, help="Compare two versions: by default the last two.")
@click.option("--from", "before", type=click.IntRange(min=1), help="The older version; only with --diff.")
@click.option("--to", "after", type=click.IntRange(min=1), help="The newer version; only with --diff.")
@click.option(
    "--check",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Ask the registry whether it would accept this schema next; the exit status is 1 if not.",
)
@json_option
def schemas(
    subject: str | None, diff: bool, before: int | None, after: int | None, check: Path | None, as_json: bool
) -> None:
    """List the subjects of the schema registry, or show SUBJECT: compatibility and versions.

    SUBJECT may also be the name of a topic. Nothing is registered.
    """
    context = click.get_current_context()
    if subject is None and (diff or check):
        raise click.UsageError("--diff and --check need a SUBJECT", context)
    if (before or after) and not diff:
        raise click.UsageError("--from and --to need --diff", context)
    if diff and check:
        raise click.UsageError("--diff and --check exclude each other", context)
    if subject is None:
        _list(as_json)
    elif diff:
        _diff(subject, before, after, as_json)
    elif check is not None:
        _check(subject, check.read_text(encoding="utf-8"), as_json)
    else:
        _show(subject, as_json)


def _run(gather: Callable[[Sources], Awaitable[Any]]) -> Any:
    """Return what the registry has; its refusals become errors of the command."""
    from highwater.api.cli.sources import registry_sources
    from highwater.api.core.errors import NotFoundError, UnprocessableError

    try:
        return asyncio.run(_gathered(gather, registry_sources()))
    except NotFoundError as error:
        raise click.UsageError(str(error), click.get_current_context()) from error
    except UnprocessableError as error:
        raise CommandFailedError(str(error)) from error


async def _gathered(gather: Callable[[Sources], Awaitable[Any]], sources: Sources) -> Any:
    return await gather(sources)


def _subject(name: str) -> str:
    from highwater.schemas.topics import TOPICS

    return TOPICS[name].subject if name in TOPICS else name


def _list(as_json: bool) -> None:
    from highwater.api.broker.schemas import all_schemas

    found = _run(all_schemas)
    if as_json:
        print_json(found)
        return
    print_table(["subject", "topic"], [(one["subject"], one["topic"] or "-") for one in found])


def _show(subject: str, as_json: bool) -> None:
    from highwater.api.broker.schemas import one_schema

    found: Mapping[str, Any] = _run(lambda sources: one_schema(sources, _subject(subject)))
    if as_json:
        print_json(found)
        return
    say(f"{found['subject']}: compatibility {found['compatibility'] or 'unknown'}")
    rows = [(one["version"], one["schema_id"], one["kind"]) for one in found["versions"]]
    print_table(["version", "schema id", "kind"], rows, right=["version", "schema id"])
    say(found["versions"][-1]["text"])


def _diff(subject: str, before: int | None, after: int | None, as_json: bool) -> None:
    from highwater.api.broker.schemas import schema_diff

    found: Mapping[str, Any] = _run(lambda sources: schema_diff(sources, _subject(subject), before, after))
    if as_json:
        print_json(found)
        return
    say(f"{found['subject']}: version {found['from']} to version {found['to']}")
    if not found["lines"]:
        say("the versions do not differ")
        return
    rows = [(one["kind"], one["field"], one["before"] or "-", one["after"] or "-") for one in found["fields"]]
    if rows:
        print_table(["", "field", "before", "after"], rows)
    for line in found["lines"]:
        say(line)


def _check(subject: str, text: str, as_json: bool) -> None:
    from highwater.api.broker.schemas import schema_check

    found: Mapping[str, Any] = _run(lambda sources: schema_check(sources, _subject(subject), text))
    if as_json:
        print_json(found)
    elif found["is_compatible"]:
        say(f"the registry would accept it as the next version ({found['compatibility']})")
    for reason in found["reasons"]:
        say(reason, err=True)
    if not found["is_compatible"]:
        raise CommandFailedError(
            f"it is not compatible with the versions of {found['subject']} ({found['compatibility']})"
        )
