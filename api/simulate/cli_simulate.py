"""`highwater simulate`: runs the protocols in virtual time under many seeds. Exit 1 if a seed breaks an invariant.

Invariant: it needs no service and waits for nothing; a seed gives the same run on any machine.
"""

from __future__ import annotations

from typing import Any

import click

from highwater.api.command.command import DONE, FAILED, Command, json_option
from highwater.api.command.terminal import print_json, print_table, progress, say
from highwater.streams.printable import printable
from highwater.streams.wording import counted

_SEEDS = 100
# One violation of a seed says what broke; the others follow from it.
_PROBLEMS_SHOWN = 3


@click.command(cls=Command)
@click.option("--seeds", type=click.IntRange(min=1), default=_SEEDS, show_default=True, help="How many seeds to run.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed.")
@click.option("--only", "names", multiple=True, metavar="SCENARIO", help="Only this scenario (may be repeated).")
@json_option
@click.pass_context
def simulate(ctx: click.Context, seeds: int, first: int, names: tuple[str, ...], as_json: bool) -> None:
    """Run leases, relays, positions, engines and agents in virtual time, with faults that each seed draws.

    Processes are stopped, killed and cut off at any call to the log or the store. The code is that of the product; log and
    store are models. A seed that breaks an invariant is named, and breaks it again: --first SEED --seeds 1.
    """
    from highwater.api.simulate.scenarios import CONTENTS, SCENARIOS, Simulated
    from highwater.api.simulate.scenarios import simulate as run
    from highwater.streams.telemetry import configure_logging

    for name in names:
        if name not in SCENARIOS:
            raise click.UsageError(f"there is no scenario {name!r}; there are {', '.join(SCENARIOS)}", ctx)
    chosen = tuple(names) or tuple(SCENARIOS)
    configure_logging("error", "json")  # simulated processes are killed on purpose; nobody reads their logs
    steps = dict.fromkeys(chosen, 0)
    failed: list[Simulated] = []
    with progress("seeds", seeds) as bar:
        for one in run(chosen, first, seeds):
            steps[one.scenario] += one.steps
            failed += [one] if one.problems else []
            bar.update(one.seed - first)
    if as_json:
        print_json(_document(first, seeds, steps, failed))
    else:
        rows = [(name, CONTENTS[name], f"{count:,}") for name, count in steps.items()]
        print_table(["scenario", "runs", "checked steps"], rows, right=["checked steps"])
        for one in failed:
            for problem in one.problems[:_PROBLEMS_SHOWN]:
                say(printable(f"{one.scenario}, seed {one.seed}: {problem}"))
            say(f"again: highwater simulate --only {one.scenario} --first {one.seed} --seeds 1")
        last = first + seeds - 1
        say(f"seeds {first} to {last}: {counted(len(failed), 'failure')}")
    ctx.exit(FAILED if failed else DONE)


def _document(first: int, seeds: int, steps: dict[str, int], failed: list[Any]) -> dict[str, Any]:
    return {"first": first, "seeds": seeds, "steps": steps, "failed": [one.as_json() for one in failed]}
