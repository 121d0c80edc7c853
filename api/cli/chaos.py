"""`highwater chaos`: injects faults into a separate stack and checks whether anything was lost, duplicated or stuck.
Exit 1 if so.

Invariant: it never touches a running stack. The same seed and minutes repeat a failed run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson

from highwater.api.command.command import DONE, FAILED, Command, CommandFailedError, json_option
from highwater.api.command.terminal import print_json, say, warn
from highwater.streams.printable import printable
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from highwater.api.chaos.plan import Fault
    from highwater.api.chaos.run import Outcome, Recovery
    from highwater.connectors.verify.report import Report
    from highwater.streams.settings import Settings

_PARTS = ("tables", "models", "decisions", "effects")
_MINUTES = 5.0


@click.command(cls=Command)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    required=True,
    help="Determines the faults, their order and duration.",
)
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), default=_MINUTES, show_default=True,
    help="Approximate duration of the faults, without start and verification.",
)  # fmt: skip
@click.option(
    "--only", "kinds", multiple=True, metavar="KIND", help="Inject only this kind of fault (may be repeated)."
)
@click.option("--plan", "is_plan_only", is_flag=True, help="Print the faults of the seed without injecting them.")
@click.option(
    "--keep", "folder", type=click.Path(path_type=Path), help="Keep the stack and its logs in this new folder."
)
@click.option(
    "--report",
    "written",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write what --json prints to this file.",
)
@json_option
@click.pass_context
def chaos(
    ctx: click.Context, seed: int, minutes: float, kinds: tuple[str, ...], is_plan_only: bool, folder: Path | None,
    written: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Inject faults into a separate stack under load and check that it recovers completely.

    Kills and stops processes, cuts, slows and holds connections, fills disks, deletes tables and their changelogs, sets clocks
    wrong, changes time zones and locales, resets and deletes consumer groups, cuts the log. After each fault it measures the
    time until a written event can be read again; at the end it verifies everything.
    """
    from highwater.api.chaos.plan import LEFT_OUT, Kind, plan_faults

    for kind in kinds:
        if kind not in tuple(Kind):
            raise click.UsageError(f"there is no fault {kind!r}; there are {', '.join(Kind)}", ctx)
    planned = plan_faults(seed, minutes * 60, kinds=[Kind(kind) for kind in kinds])
    if is_plan_only:
        if as_json:
            print_json({"seed": seed, "planned": [fault.as_json() for fault in planned], "left_out": LEFT_OUT})
            return
        for fault in planned:
            say(str(fault))
        for what, why in LEFT_OUT.items():
            say(f"left out: {what}: {why}")
        return
    with _folder(folder) as made:
        outcome = _run(made, seed, planned, as_json=as_json)
    if written is not None:
        written.write_bytes(orjson.dumps(outcome.as_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    if as_json:
        print_json(outcome.as_json())
    else:
        _print(outcome, minutes)
    ctx.exit(FAILED if outcome.problems else DONE)


def _run(folder: Path, seed: int, planned: list[Fault], *, as_json: bool) -> Outcome:
    from highwater.api.chaos.ground import Remedies
    from highwater.api.chaos.run import run
    from highwater.api.cli.recover_tables import run_recovery
    from highwater.api.cli.repair_log import run_repair
    from highwater.api.cli.stack import make_plan
    from highwater.api.cli.verify import run_verification
    from highwater.deploy.local.errors import LocalStackError
    from highwater.streams.telemetry import configure_logging

    # The sinks and agents of the verification log what they refuse, as they did when it was new.
    configure_logging("error", "json")
    os.umask(0o077)  # only the owner may read files of the data folder; children inherit this

    async def verify(settings: Settings) -> Report:
        return await run_verification(settings, _PARTS, is_quiet=True)

    def recover(settings: Settings) -> None:
        asyncio.run(run_recovery(settings))

    def repair(settings: Settings) -> dict[str, str]:
        _, repaired = asyncio.run(run_repair(settings, is_executed=True))
        return {str(before): str(now) for one in repaired for before, now in one.moved.items()}

    def tell(recovery: Recovery) -> None:
        if not as_json:
            say(_line(recovery))

    def report(line: str) -> None:
        if not as_json:
            warn(line)

    try:
        return run(
            folder,
            seed,
            planned,
            make_plan=make_plan,
            verify=verify,
            remedies=Remedies(recover, repair),
            report=report,
            notify=tell,
        )
    except LocalStackError as error:
        raise CommandFailedError(str(error)) from error


@contextlib.contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    """Yield the folder of the stack; an unnamed one is deleted at the end."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="highwater-chaos-", ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    if kept.exists():
        raise CommandFailedError(f"{kept} exists already; --keep needs the name of a new folder")
    kept.mkdir(parents=True)
    yield kept.absolute()


def _line(recovery: Recovery) -> str:
    return f"{recovery.fault}: read again after {recovery.readable_seconds:.1f} s, all ready after {recovery.ready_seconds:.1f} s"


def _print(outcome: Outcome, minutes: float) -> None:
    from highwater.api.chaos.run import by_kind

    sent = ", ".join(f"{count:,} {name}" for name, count in outcome.sent.items())
    requests = ", ".join(f"{count:,} {name}" for name, count in outcome.requests.items())
    say(f"sent: {sent}; requests: {requests}")
    for kind, of in by_kind(outcome.recovered).items():
        say(
            f"{kind}: {counted(int(of['faults']), 'fault')}, read again after {of['median_seconds']:.1f} s at the median, "
            f"{of['worst_seconds']:.1f} s at worst"
        )
    for problem in outcome.problems:
        say(printable(problem))
    found = counted(len(outcome.problems), "problem") if outcome.problems else "nothing lost, duplicated or stuck"
    say(
        f"seed {outcome.seed}, {len(outcome.recovered)} of {len(outcome.planned)} faults, {outcome.compared:,} compared: {found}"
    )
    if outcome.problems:
        say(f"again: highwater chaos --seed {outcome.seed} --minutes {minutes:g} --keep FOLDER")
