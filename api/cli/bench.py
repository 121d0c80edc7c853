"""`highwater bench`: the benchmarks of a checkout, modules of `tests/bench` with a `run(runs)` that returns
measurements.

`cluster_quality.py` is the benchmark `cluster-quality`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import click

from highwater.api.command.command import Command, CommandFailedError, json_option
from highwater.api.command.terminal import print_json, print_table, progress, say, warn

_CHECKOUT = Path(__file__).resolve().parents[2]  # resolved: the package has links to the folders of a checkout
_KEPT = _CHECKOUT / "docs" / "benchmarks"
# Half an hour each: they run only by name.
_LONG = frozenset({"overload", "search-quality", "week"})
_FIELDS = ("name", "system", "value", "unit", "runs", "min", "max")


def bench_names(checkout: Path) -> list[str]:
    """Return the benchmarks of a checkout; none outside of one. A module there without a `run` is a helper."""
    found = (checkout / "tests" / "bench").glob("*.py")
    runnable = (path for path in found if "\ndef run(" in path.read_text(encoding="utf-8"))
    return sorted(path.stem.replace("_", "-") for path in runnable)


@click.command(cls=Command)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--runs",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Runs of each; the median is reported.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Duration of overload and week in minutes.",
)
@click.option(
    "--save", "save_results", is_flag=True, help="Save the results to docs/benchmarks/NAME.json, curves to NAME.svg."
)
@click.option(
    "--compare",
    "earlier",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Run the benchmark of these results (docs/benchmarks/NAME.json) again; exit status 1 if a ratio to a peer dropped.",
)
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.8,
    show_default=True,
    help="With --compare: share of its former value that a ratio must keep.",
)
@json_option
def bench(
    names: tuple[str, ...],
    runs: int,
    minutes: float | None,
    save_results: bool,
    earlier: tuple[Path, ...],
    share: float,
    as_json: bool,
) -> None:
    """Run benchmarks (the named ones, or all but overload and week) beside their peers."""
    results = _results_module()
    before = {found["benchmark"]: found for found in _read_earlier(results, earlier)}
    chosen = _chosen([*names, *before])
    found: dict[str, tuple[Any, list[Any]]] = {}
    with progress("benchmarks", len(chosen)) as bar:
        for done, name in enumerate(chosen):
            bar.update(done)
            module = importlib.import_module(f"tests.bench.{name.replace('-', '_')}")
            takes_minutes = minutes is not None and "minutes" in signature(module.run).parameters
            figures = module.run(runs, **({"minutes": minutes} if takes_minutes else {}))
            found[name] = (module, figures)
            if as_json:
                for figure in figures:
                    print_json(figure)
            if save_results:
                for path in results.save(_KEPT, results.results_of(name, figures, _now_ms())):
                    warn(f"saved {path.relative_to(_CHECKOUT)}")
    if not as_json:
        _print_tables(list(found.values()))
    _judge(
        [drop for name, kept in before.items() for drop in results.drops(kept["figures"], found[name][1], share)], share
    )


def _results_module() -> Any:
    """Return `tests.bench.results`, which only a checkout has."""
    if not bench_names(_CHECKOUT):
        raise CommandFailedError("benchmarks run only in a checkout of the Highwater repository")
    if str(_CHECKOUT) not in sys.path:
        sys.path.insert(0, str(_CHECKOUT))
    return importlib.import_module("tests.bench.results")


def _read_earlier(results: Any, paths: Sequence[Path]) -> list[Any]:
    try:
        return [results.read(path) for path in paths]
    except ValueError as error:
        raise click.UsageError(str(error), click.get_current_context()) from error


def _chosen(names: Sequence[str]) -> list[str]:
    """Return each named benchmark once, in the given order; without names all except the long ones."""
    known = bench_names(_CHECKOUT)
    for name in names:
        if name not in known:
            raise click.UsageError(
                f"there is no benchmark {name!r}; there are {', '.join(known)}", click.get_current_context()
            )
    return list(dict.fromkeys(names)) or [name for name in known if name not in _LONG]


def _judge(drops: Sequence[Any], share: float) -> None:
    """Fail with every ratio that dropped."""
    if drops:
        lines = [f"{one.name}: {one.ours} is {one.now:.3g} x {one.peer}, was {one.before:.3g}" for one in drops]
        raise CommandFailedError(f"less than {share:g} of before: " + "; ".join(lines))


def _now_ms() -> int:
    from highwater.streams.clock import ProductClock

    return ProductClock()()


def _print_tables(found: list[tuple[Any, list[Any]]]) -> None:
    """Print the measurements as tables. A module with its own `table` has many measures of few systems."""
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
            say(module.table(figures))


def _number(value: Any) -> Any:
    """Format numbers for a table: four digits, since such a measurement is not more precise."""
    return (
        f"{value:,.4g}"
        if isinstance(value, float) and abs(value) < 10_000
        else f"{value:,.0f}"
        if isinstance(value, float)
        else value
    )
