"""`highwater bench`: the benchmarks of a checkout, modules of `tests/bench` with a `run(runs)` that returns figures.

`cluster_quality.py` is the benchmark `cluster-quality`.
"""

from __future__ import annotations

import importlib
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import click

from highwater.api.command.command import Command, CommandFailedError, json_option
from highwater.api.command.terminal import print_json, print_table, progress

_CHECKOUT = Path(__file__).resolve().parents[2]  # resolved: the package links to the folders of a checkout
_FIELDS = ("name", "system", "value", "unit", "runs", "min", "max")


def bench_names(checkout: Path) -> list[str]:
    """The benchmarks of a checkout; empty outside one. A module there without a `run` helps the others."""
    found = (checkout / "tests" / "bench").glob("*.py")
    runnable = (path for path in found if "\ndef run(" in path.read_text(encoding="utf-8"))
    return sorted(path.stem.replace("_", "-") for path in runnable)


@click.command(cls=Command)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--runs", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs of each; the median counts."
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="How long those take that last for minutes (overload, week).",
)
@json_option
def bench(names: tuple[str, ...], runs: int, minutes: float | None, as_json: bool) -> None:
    """Run the benchmarks (all, or those named), peers included."""
    known = bench_names(_CHECKOUT)
    if not known:
        raise CommandFailedError("the benchmarks are part of a checkout of Highwater and this is none")
    for name in names:
        if name not in known:
            raise click.UsageError(
                f"there is no benchmark {name!r}; there are {', '.join(known)}", click.get_current_context()
            )
    if str(_CHECKOUT) not in sys.path:
        sys.path.insert(0, str(_CHECKOUT))
    chosen = list(names) or known
    found: list[tuple[Any, list[Any]]] = []
    with progress("benchmarks", len(chosen)) as bar:
        for done, name in enumerate(chosen):
            bar.update(done)
            module = importlib.import_module(f"tests.bench.{name.replace('-', '_')}")
            lasts = (
                {"minutes": minutes} if minutes is not None and "minutes" in signature(module.run).parameters else {}
            )
            found.append((module, module.run(runs, **lasts)))
            if as_json:
                for figure in found[-1][1]:
                    print_json(figure)
    if not as_json:
        _print_tables(found)


def _print_tables(found: list[tuple[Any, list[Any]]]) -> None:
    """The figures for a reader. A module with a `table` of its own has many measures of few systems."""
    rows = [
        [_number(figure[field]) for field in _FIELDS]
        for module, figures in found
        if not hasattr(module, "table")
        for figure in figures
    ]
    if rows:
        print_table(_FIELDS, rows, right=["value", "runs", "min", "max"])
    for module, figures in found:
        if hasattr(module, "table"):
            click.echo(module.table(figures))


def _number(value: Any) -> Any:
    """Figures in a table: four digits are what such a measurement is worth."""
    return (
        f"{value:,.4g}"
        if isinstance(value, float) and abs(value) < 10_000
        else f"{value:,.0f}"
        if isinstance(value, float)
        else value
    )
