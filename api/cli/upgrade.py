"""`highwater upgrade --check`: checks whether the running installation can be upgraded to this version. It changes
nothing.

Invariant: run it with the new version while the old one runs. Failed checks must be resolved before `highwater init` of
the new version; the rest happens while both versions run.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence

import click

from highwater.api.cli.checks import BAD, OK, WARNING, Check
from highwater.api.command.command import FAILED, Command, json_option
from highwater.api.command.connection import database, stack_settings
from highwater.api.command.terminal import print_json, print_table, say
from highwater.schemas.errors import HighwaterError
from highwater.streams.settings import Settings
from highwater.streams.wording import counted

_NAMED_MAX = 10


@click.command(cls=Command)
@click.option("--check", "is_check", is_flag=True, help="Only report; the command does nothing else.")
@json_option
def upgrade(is_check: bool, as_json: bool) -> None:
    """Check whether the running installation can be upgraded to this version; exit status 1 if not.

    Run it with the new version before `highwater init`. Then restart the roles one by one: migrations and schemas only expand, so
    the last release and this version run side by side.
    """
    if not is_check:
        raise click.UsageError("only `highwater upgrade --check` is known", click.get_current_context())
    settings = stack_settings("kafka", "schema_registry", "database")
    found = asyncio.run(check_upgrade(settings))
    if as_json:
        print_json([dataclasses.asdict(check) for check in found])
    else:
        print_table(["", "check", "found"], [(check.state, check.name, check.detail) for check in found])
        for check in found:
            if check.remedy:
                say(f"{check.name}: {check.remedy}")
    if any(check.state == BAD for check in found):
        click.get_current_context().exit(FAILED)


async def check_upgrade(settings: Settings) -> list[Check]:
    """Run every check; a failed one does not stop the others."""
    from highwater.api.cli.checks import check_lag

    found: list[Check] = []
    for name, check in {"database": _check_database, "schemas": _check_schemas, "lag": check_lag}.items():
        try:
            found += await check(settings)
        except HighwaterError as error:
            found.append(Check(name, BAD, " ".join(str(error).split())))
    return found


async def _check_database(settings: Settings) -> list[Check]:
    from highwater.connectors.backup.statements import QUERIES
    from highwater.connectors.postgres.migrate import known_migrations
    from highwater.connectors.postgres.sessions import PROGRAM

    async with database(settings) as pool:
        there = await pool.fetchval(QUERIES["has_migrations"])
        applied = (
            {row["name"]: row["sha256"] for row in await pool.fetch(QUERIES["backup_migrations"])} if there else {}
        )
        async with pool.acquire() as own:
            rows = await own.fetch(QUERIES["other_sessions"], [])
    sessions = {
        row["application_name"]: row["count"] for row in rows if row["application_name"].startswith("highwater/")
    }
    return [migrations_pending(known_migrations(), applied), versions_verdict(sessions, PROGRAM)]


def migrations_pending(expected: Mapping[str, str], applied: Mapping[str, str]) -> Check:
    """Return what `highwater init` of this version would apply, by the digests of migrations."""
    pending = sorted(set(expected) - set(applied))
    newer = sorted(set(applied) - set(expected))
    changed = sorted(name for name in expected if name in applied and applied[name] != expected[name])
    if newer:
        return Check(
            "migrations", BAD, f"of a newer version: {_some(newer)}", "this version is the older one; install the newer"
        )
    if changed:
        return Check("migrations", BAD, f"differ from the applied ones: {_some(changed)}", "restore their files")
    if pending:
        return Check(
            "migrations",
            OK,
            f"{len(pending)} to apply: {_some(pending)}",
            "`highwater init` applies them, roles keep running",
        )
    return Check("migrations", OK, f"all {len(applied)} applied")


def versions_verdict(sessions: Mapping[str, int], own: str) -> Check:
    """Return which versions are connected to the database, by what their sessions report."""
    told = ", ".join(
        f"{name.partition('/')[2]} ({counted(count, 'connection')})" for name, count in sorted(sessions.items())
    )
    if len(sessions) > 1:
        return Check("roles", WARNING, f"of several versions: {told}", "restart the roles of the older version")
    if not sessions:
        return Check("roles", OK, "no role is connected to the database")
    is_own = own in sessions
    return Check("roles", OK, f"all of {told}{', this version' if is_own else ''}")


async def _check_schemas(settings: Settings) -> list[Check]:
    from highwater.connectors.kafka.registry import COMPATIBILITY, Registry
    from highwater.schemas.topics import TOPICS

    registry = Registry(settings.registry_access())
    asked = [topic for topic in TOPICS.values() if topic.schema]
    breaking = [topic.subject for topic in asked if not await registry.is_compatible(topic)]
    if breaking:
        remedy = "give new fields a default, and leave old ones as they are"
        return [Check("schemas", BAD, f"not {COMPATIBILITY} with the registry: {_some(breaking)}", remedy)]
    return [Check("schemas", OK, f"{len(asked)} are {COMPATIBILITY} with the registry")]


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
