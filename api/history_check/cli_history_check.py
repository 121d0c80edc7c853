"""`highwater history-check`: a foreign checker. Clients work against a running stack, and their history is checked.
Exit 1 if it has a violation.

Invariant: it uses what any outside program can use: the API, and topics in the Confluent wire format.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from highwater.api.command.command import DONE, FAILED, Command, CommandFailedError, json_option
from highwater.api.command.terminal import print_json, print_table, say, warn
from highwater.streams.printable import printable
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from highwater.api.history_check.checks import Verdict
    from highwater.api.history_check.run import Left
    from highwater.streams.settings import Settings

_SECONDS = 60.0
_CLIENTS = 6
# Between two operations of a client: an idle stack on two cores answers about 150 operations a second.
_PAUSE_SECONDS = 0.02


@click.command("history-check", cls=Command)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=_SECONDS, show_default=True,
    help="How long the clients work, without the reads at the end.",
)  # fmt: skip
@click.option(
    "--clients", type=click.IntRange(1, 200), default=_CLIENTS, show_default=True,
    help="Clients beside each other; every second one writes to Kafka.",
)  # fmt: skip
@click.option(
    "--api", "apis", multiple=True, metavar="URL",
    help="An API process (repeat it for several). Without it: the API of the stack, and a second process of it.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Determines what clients draw.")
@click.option(
    "--history", "kept", type=click.Path(path_type=Path, dir_okay=False), help="Keep the history in this new file."
)
@click.option(
    "--check", "checked", type=click.Path(path_type=Path, dir_okay=False),
    help="Check the history in this file; nothing is started or written.",
)  # fmt: skip
@json_option
@click.pass_context
def history_check(
    ctx: click.Context, seconds: float, clients: int, apis: tuple[str, ...], seed: int, kept: Path | None,
    checked: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Let clients write and read through the API and Kafka, and check the history of what they saw.

    It checks that each acknowledged insight is stored once, that seq has no gap, that nothing older is read after something
    newer in any API process, that an ETag has one body and a 304 the current ETag, and that reads with positions,
    retractions and erasures are exact. What it writes stays in the stack: channels, users and a season that begin with hc.
    """
    from highwater.api.history_check.checks import check_history
    from highwater.api.history_check.history import read_history

    if checked is not None:
        if kept is not None or apis:
            raise click.UsageError("--check reads a history; --history and --api are for a run", ctx)
        verdict, left = check_history(read_history(checked)), None
    else:
        if kept is not None and kept.exists():
            raise click.UsageError(f"{kept} exists already; --history needs the name of a new file", ctx)
        with _file(kept) as path:
            verdict, left = _run(path, seconds, clients, apis, seed, is_quiet=as_json)
    if as_json:
        print_json({**verdict.as_json(), **({} if left is None else {"stored": left.stored, "unread": left.unread})})
    else:
        _print(verdict, left)
    if left is not None and left.unread:
        raise CommandFailedError(
            f"{counted(left.unread, 'read')} at the end had no definite answer; check the stack with `highwater doctor`"
        )
    ctx.exit(FAILED if verdict.count else DONE)


@contextlib.contextmanager
def _file(kept: Path | None) -> Iterator[Path]:
    """Yield the file of the history; an unnamed one is deleted at the end."""
    if kept is not None:
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="highwater-history-") as folder:
        yield Path(folder) / "history.jsonl"


def _run(
    path: Path, seconds: float, clients: int, apis: tuple[str, ...], seed: int, *, is_quiet: bool
) -> tuple[Verdict, Left]:
    from highwater.api.command.client import any_key
    from highwater.api.command.connection import api_address, api_trust, kafka_client, stack_settings
    from highwater.api.history_check.run import START_SECONDS_MAX, Run, Workload, require_ready
    from highwater.api.history_check.sessions import Target, is_ready
    from highwater.api.history_check.wire import UnreachableError
    from highwater.streams.access import RegistryAccess
    from highwater.streams.clock import ProductClock
    from highwater.streams.settings import environment_with_file

    needed = ("kafka", "schema_registry") if apis else ("kafka", "schema_registry", "database", "redis")
    try:
        settings = stack_settings(*needed)
    except CommandFailedError as error:  # wrong use here: exit status 1 stands for violations
        raise UnreachableError(str(error)) from error
    own = [one.rstrip("/") for one in apis] or [api_address(settings, environment_with_file())]
    with contextlib.ExitStack() as opened:
        trust, key = api_trust(settings, own[0]), any_key(settings)
        require_ready(own, lambda api: is_ready(api, trust))
        addresses = own if apis else [*own, opened.enter_context(_second(settings))]
        require_ready(addresses, lambda api: is_ready(api, trust), START_SECONDS_MAX)
        target = Target(addresses, trust, key)
        registry = RegistryAccess.required(settings.registry_access())
        workload = Workload(clients, _PAUSE_SECONDS, seed)
        run = Run(path, workload, target, kafka_client(settings), registry, ProductClock(settings.clock_file))
        if not is_quiet:
            warn(f"{counted(clients, 'client')} at {', '.join(addresses)} for {seconds:g} s")
        with run:
            run.wait(seconds)
        run.stop()
        if not is_quiet:
            warn("reading what is stored")
        left = run.read_left()
    return run.verdict(), left


def _second(settings: Settings) -> contextlib.AbstractContextManager[str]:
    from highwater.api.history_check.second_api import second_api

    return second_api(settings)


def _print(verdict: Verdict, left: Left | None) -> None:
    print_table(["check", "compared"], [(name, f"{n:,}") for name, n in verdict.compared.items()], right=["compared"])
    for violation in verdict.violations:
        say(printable(str(violation)))
    if verdict.count > len(verdict.violations):
        say(f"{verdict.count - len(verdict.violations):,} more violations are not shown")
    if left is not None:
        say(f"stored: {', '.join(f'{count:,} {name}' for name, count in left.stored.items())}")
    outcomes = ", ".join(f"{count:,} {name}" for name, count in verdict.operations.items())
    say(f"operations: {outcomes}; {counted(verdict.count, 'violation')}")
