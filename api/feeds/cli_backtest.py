"""`highwater backtest`, also `backtest policies`: compares the live policy with up to five others.

Invariant: nothing is changed or sent. The live policy over its recorded ticks is compared with the actual requests; a
difference is exit status 1.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.command import FAILED, Command, CommandFailedError, json_option
from highwater.api.command.connection import database, kafka_client, own_settings, stack_settings
from highwater.api.command.terminal import print_json, print_table, say, warn
from highwater.api.command.times import TimeOption, at_ms
from highwater.streams.wording import agreed, counted

if TYPE_CHECKING:
    from highwater.connectors.feeds.histories import Arrivals
    from highwater.streams.feeds.backtest import Costs, Report
    from highwater.streams.feeds.policy import Policy
    from highwater.streams.settings import Settings

POLICIES_MAX = 5
_USERS_MAX = 1_000_000
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class PriceOption(click.ParamType):
    """`IN/OUT` in USD per million tokens."""

    name = "price"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, float]:
        """The two prices."""
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)", value)
        if found is None:
            self.fail(f"{value!r} is not IN/OUT, such as 0.15/0.60", param, ctx)
        return float(found[1]), float(found[2])


@click.command(cls=Command)
@click.option(
    "--policy", "policies", type=_FILE, multiple=True, help=f"A policy in TOML; up to {POLICIES_MAX} of them."
)
@click.option("--from", "begin", type=TimeOption(), help="Start of the simulation: a time, or an age such as -30d.")
@click.option("--to", "end", type=TimeOption(), help="End of the simulation.")
@click.option("--population", type=click.IntRange(1, _USERS_MAX), help="Simulated users instead of the recorded ones.")
@click.option(
    "--insights", type=_FILE, help="File with insights (JSON lines, may be gzipped) instead of the stored ones."
)
@click.option("--by", type=click.Choice(["event", "arrival"]), default="event", show_default=True,
              help="Time field by which stored insights arrive in the simulation.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the simulated users.")
@click.option(
    "--price", type=PriceOption(), help="Price in USD per million tokens, IN/OUT, to estimate the cost of titles."
)
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Plot the result to FILE.svg or FILE.png."
)
@json_option
def backtest(
    policies: tuple[Path, ...],
    begin: int | None,
    end: int | None,
    population: int | None,
    insights: Path | None,
    by: str,
    seed: int,
    price: tuple[float, float] | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Rerun rebuild decisions in virtual time and compare rebuilds, staleness and cost with the live policy.

    Uses the recorded ticks and users, or with --population stored insights and that many simulated readers.
    """
    from highwater.api.feeds.plots import write_plot

    context = click.get_current_context()
    if len(policies) > POLICIES_MAX:
        raise click.UsageError(f"{len(policies)} policies; at most {POLICIES_MAX} beside the live one", context)
    if insights is not None and population is None:
        raise click.UsageError("--insights needs --population: a file has no users", context)
    if plot is not None and plot.suffix.lower() not in (".svg", ".png"):
        raise click.UsageError("--plot takes FILE.svg or FILE.png", context)
    settings = own_settings() if insights is not None else stack_settings("kafka", "schema_registry", "database")
    chosen = _policies(settings, policies)
    costs = _costs(settings, price)
    if population is None:
        document = _recorded(settings, chosen, costs, begin, end)
    else:
        arrivals = _arrivals(settings, insights, by_arrival=by == "arrival")
        document = _populated(settings, chosen, costs, arrivals, (begin, end), population, seed)
    if plot is not None:
        write_plot(plot, document["policies"])
    if as_json:
        print_json(document)
    else:
        _print(document)
    check = document["live_check"]
    if check is not None and (check["missing"] or check["extra"]):
        missing = counted(check["missing"], "recorded request was", "recorded requests were")
        extra = counted(check["extra"], "other request was", "other requests were")
        warn(f"{missing} not repeated, {extra} made")
        context.exit(FAILED)


def _policies(settings: Settings, files: tuple[Path, ...]) -> dict[str, Policy]:
    from highwater.streams.feeds.policy import load_policy

    found = {"live": load_policy(settings.policy_file)}
    for path in files:
        name = path.stem if path.stem not in found else str(path)
        found[name] = load_policy(path)
    return found


def _costs(settings: Settings, price: tuple[float, float] | None) -> Costs:
    from highwater.streams.feeds.backtest import DAY_MS, Costs

    return Costs(
        insights_max=settings.rebuild_insights_max,
        window_ms=int(settings.window_days * DAY_MS),
        price_in_usd=price[0] if price else None,
        price_out_usd=price[1] if price else None,
    )


def _recorded(
    settings: Settings, policies: dict[str, Policy], costs: Costs, begin: int | None, end: int | None
) -> dict[str, Any]:
    from highwater.connectors.feeds.histories import described, read_recorded, replay_live, replay_other
    from highwater.connectors.kafka.finding import Finder
    from highwater.connectors.kafka.registry import Registry
    from highwater.schemas.errors import UnknownSchemaError
    from highwater.streams.clock import ProductClock

    now_ms = ProductClock(settings.clock_file)()
    registry = Registry(settings.registry_access())
    codec = asyncio.run(registry.codec())
    absent: set[int] = set()
    learnt: set[int] = set()
    finder = Finder(kafka_client(settings), codec, absent)
    try:
        while True:
            try:
                recorded = read_recorded(finder, _at(begin, now_ms) or 0, _at(end, now_ms))
                break
            except UnknownSchemaError as error:  # from another version of the program: learn its schema and read again
                if error.schema_id in learnt:
                    raise CommandFailedError("the log uses more foreign schemas than are kept in memory") from error
                learnt.add(error.schema_id)
                try:
                    codec.teach(error.schema_id, asyncio.run(registry.text_of(error.schema_id)))
                except UnknownSchemaError:  # such a value is not an event
                    absent.add(error.schema_id)
    finally:
        finder.close()
    if recorded.span_ms == (0, 0):
        raise CommandFailedError("the log holds no ticks of that time (they are kept for 7 days); see --population")
    live, *others = policies.items()
    report, comparison = replay_live(live[1], recorded, costs)
    reports: dict[str, Report] = {live[0]: report}
    reports |= {name: replay_other(policy, recorded, costs) for name, policy in others}
    return described(reports, comparison)


def _arrivals(settings: Settings, path: Path | None, *, by_arrival: bool) -> Arrivals:
    from highwater.connectors.feeds.histories import read_arrivals, read_span

    if path is not None:
        return _file_arrivals(path)

    async def read() -> Arrivals | None:
        async with database(settings) as pool:
            span = await read_span(pool, by_arrival=by_arrival)
            return None if span is None else await read_arrivals(pool, span[0], span[1] + 1, by_arrival=by_arrival)

    found = asyncio.run(read())
    if found is None:
        raise CommandFailedError(
            "there are no insights yet; `highwater publish feeds.insight-ingested FILE`, or --insights"
        )
    return found


def _file_arrivals(path: Path) -> Arrivals:
    import numpy as np

    from highwater.api.command.lines import decompressed, event_of, iter_lines
    from highwater.connectors.feeds.histories import Arrivals
    from highwater.schemas.errors import InvalidEventError

    at_ms, channel_ids, refused = [], [], 0
    with path.open("rb") as stream:
        for line in iter_lines(decompressed(stream)):
            try:
                event = event_of("feeds.insight-ingested", line, shift_ms=0, embedding_dimensions=0)
            except InvalidEventError:
                refused += 1
                continue
            at_ms.append(event["ts"])
            channel_ids.append(event["channel_id"])
    if refused:
        are = agreed(refused, "is not an insight and was", "are not insights and were")
        warn(f"{counted(refused, 'line')} of {path} {are} left out")
    if not at_ms:
        raise CommandFailedError(f"{path} holds no insights")
    return Arrivals(np.array(at_ms, dtype=np.int64), tuple(channel_ids))


def _populated(
    settings: Settings,
    policies: dict[str, Policy],
    costs: Costs,
    arrivals: Arrivals,
    bounds: tuple[int | None, int | None],
    users: int,
    seed: int,
) -> dict[str, Any]:
    from highwater.connectors.feeds.histories import described
    from highwater.streams.feeds.backtest_fast import report_fast
    from highwater.streams.feeds.backtest_people import make_population

    # Ages count from the last insight, so an old file works as well as a new one.
    last_ms = int(arrivals.at_ms.max()) + 1
    end_ms = _at(bounds[1], last_ms) or last_ms
    begin_ms = _at(bounds[0], last_ms)
    begin_ms = int(arrivals.at_ms.min()) if begin_ms is None else begin_ms
    if begin_ms >= end_ms:
        raise CommandFailedError("--from is not before --to, or no insight arrived between them")
    world = make_population(
        arrivals.at_ms, arrivals.channel_ids, users,
        begin_ms=begin_ms, end_ms=end_ms, tick_ms=int(settings.tick_seconds * 1000), seed=seed,
    )  # fmt: skip
    return described({name: report_fast(policy, world, costs) for name, policy in policies.items()}, None)


def _at(given: int | None, now_ms: int) -> int | None:
    return None if given is None else at_ms(given, now_ms)


def _print(document: dict[str, Any]) -> None:
    columns = [
        "policy",
        "requests",
        "rebuilds",
        "a user and day",
        "skipped",
        "stale p50",
        "p95",
        "max",
        "clustering",
        "titles",
    ]
    has_price = any(one["llm_cost_usd"] is not None for one in document["policies"])
    rows = [
        (
            one["policy"],
            f"{one['requests']:,}",
            f"{one['rebuilds']:,}",
            "-" if one["rebuilds_per_user_day"] is None else f"{one['rebuilds_per_user_day']:.3f}",
            f"{one['skips']:,}",
            *(_duration(one[f"staleness_{name}_seconds"]) for name in ("p50", "p95", "max")),
            _duration(one["clustering_seconds"]),
            f"{one['llm_clusters_titled']:,}",
            *([f"{one['llm_cost_usd'] or 0:,.2f}"] if has_price else []),
        )
        for one in document["policies"]
    ]
    columns += ["USD"] if has_price else []
    print_table(columns, rows, right=columns[1:])
    first, check = document["policies"][0], document["live_check"]
    say(
        f"\n{counted(first['users'], 'user')} over {first['days']:,.1f} days; "
        f"{counted(first['insights_served'], 'insight')} served (live)"
    )
    if check is not None:
        order = f", {check['reordered']} by another order of arrival" if check["reordered"] else ""
        if check["other_policy"]:
            order += f"; {check['other_policy']:,} were made by another policy than the one that is live now"
        say(f"live: {check['same']:,} of {check['recorded']:,} recorded requests repeated{order}")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"
