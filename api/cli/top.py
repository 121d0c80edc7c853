"""`highwater top`: shows topics, consumers, the slowest work and the memory of processes, on a terminal continuously or once."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import click

from highwater.api.cli.lag import gather_lags
from highwater.api.cli.top_figures import Look, Timings, figures, parse_work
from highwater.api.command.command import FAILED, Command, CommandFailedError, json_option
from highwater.api.command.connection import api_address, api_trust, kafka_client, stack_settings
from highwater.api.command.terminal import print_json, print_table, say, warn
from highwater.schemas.errors import HighwaterError
from highwater.streams.clock import monotonic_seconds
from highwater.streams.printable import printable
from highwater.streams.settings import environment_with_file

if TYPE_CHECKING:
    from rich.console import RenderableType

    from highwater.streams.settings import Settings

_SECONDS_DEFAULT = 2.0
# Latencies are of the last minute: in two seconds most kinds of work do not occur.
_WINDOW_SECONDS = 60.0
_SCRAPE_SECONDS = 2.0
_MIB = 1 << 20
_TABLES = {
    "topics": (("topic", "per_second", "records"), ("topic", "records/s", "records")),
    "groups": (("group", "events", "seconds", "problem"), ("consumer", "behind", "seconds", "")),
    "slowest": (("work", "p95_ms", "mean_ms", "count"), ("slowest of the last minute", "p95 ms", "mean ms", "times")),
    "memory": (("process", "bytes"), ("process", "MiB")),
}
_NUMBERS = ("records/s", "records", "behind", "seconds", "p95 ms", "mean ms", "times", "MiB")


@click.command(cls=Command)
@click.option("--once", is_flag=True, help="Print once and end; the default if the output is not a terminal.")
@click.option(
    "--interval",
    type=click.FloatRange(0.5, 60),
    default=_SECONDS_DEFAULT,
    show_default=True,
    metavar="SECONDS",
    help="Time between two measurements.",
)
@click.option(
    "-n",
    "--rows",
    type=click.IntRange(1, 1_000),
    default=10,
    show_default=True,
    help="Maximum number of rows per table.",
)
@json_option
def top(once: bool, interval: float, rows: int, as_json: bool) -> None:
    """Show what is busy and what is slow: rates of topics, lag of consumers, slowest routes and stages, memory.

    Ctrl-C ends it. With --once or --json it measures twice, one interval apart. The exit status is 1 if a service did not answer.
    """
    looking = _Looking(stack_settings("kafka"))
    if once or as_json or not sys.stdout.isatty():
        before = looking.look()
        time.sleep(interval)
        told = figures(before, looking.look())
        _print(told, rows, as_json=as_json)
        if told["problems"]:
            click.get_current_context().exit(FAILED)
        return
    _show(looking, interval, rows)


def _print(told: dict[str, Any], rows: int, *, as_json: bool) -> None:
    if as_json:
        print_json(told)
        return
    for name, (keys, columns) in _TABLES.items():
        print_table(columns, [_cells(keys, one) for one in told[name][:rows]], right=_NUMBERS)
        say()
    for problem in told["problems"]:
        warn(f"highwater: {problem}")


def _cells(keys: tuple[str, ...], one: dict[str, Any]) -> list[str]:
    return [_cell(key, one[key]) for key in keys]


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "-" if key == "seconds" else ""
    if key == "bytes":
        return f"{value / _MIB:,.0f}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _show(looking: _Looking, interval: float, rows: int) -> None:
    """Redraw until Ctrl-C."""
    from rich.live import Live

    looks = deque([looking.look()])
    with Live(screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            looks.append(looking.look())
            while looks[-1].at_seconds - looks[1].at_seconds > _WINDOW_SECONDS:
                looks.popleft()
            # Rates are of the last interval, latencies of the last minute.
            told = {**figures(looks[0], looks[-1]), "topics": figures(looks[-2], looks[-1])["topics"]}
            live.update(_screen(told, rows), refresh=True)


def _screen(told: dict[str, Any], rows: int) -> RenderableType:
    from rich.columns import Columns
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    tables = []
    for name, (keys, columns) in _TABLES.items():
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(
                column, justify="right" if column in _NUMBERS else "left", no_wrap=True, overflow="ellipsis"
            )
        for one in told[name][:rows]:
            table.add_row(*(Text(printable(cell)) for cell in _cells(keys, one)))
        tables.append(table)
    problems = [Text(printable(problem), style="bold red") for problem in told["problems"]]
    return Group(Text("highwater top (Ctrl-C ends it)", style="dim"), *problems, Columns(tables, padding=(1, 4)))


class _Looking:
    """The sources of each measurement."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._api = _api(settings)

    def look(self) -> Look:
        """Query everything; a source that does not answer is reported as a problem."""
        problems: list[str] = []
        ends: dict[str, int] = {}
        groups: list[dict[str, Any]] = []
        work: dict[tuple[str, str], Timings] = {}
        state = _local_state(self._settings)
        try:
            ends = asyncio.run(_ends(self._settings))
            if self._settings.database is not None:
                groups = [group.document() for group in asyncio.run(gather_lags(self._settings))]
        except HighwaterError as error:
            problems.append(str(error))
        for name, address in self._metrics(state).items():
            text = self._scraped(address)
            if text is None:
                problems.append(f"{name} does not answer at {address}")
            else:
                work |= parse_work(text)
        return Look(monotonic_seconds(), ends, groups, work, _memory(state), problems)

    def _metrics(self, state: dict[str, Any] | None) -> dict[str, str]:
        """Return the metrics address of each role of the local stack; without a stack that of the API."""
        ready = {part["name"]: part.get("ready_url") for part in (state or {}).get("parts", ())}
        found = {name: f"{url.removesuffix('/readyz')}/metrics" for name, url in ready.items() if url}
        return found or ({} if self._api is None else {"api": f"{self._api}/metrics"})

    def _scraped(self, address: str) -> str | None:
        """Return a page of metrics; None if there is no answer."""
        import httpx2

        verify = api_trust(self._settings, address)
        try:
            answer = httpx2.get(address, timeout=_SCRAPE_SECONDS, trust_env=False, verify=verify)
        except httpx2.HTTPError:
            return None
        return answer.text if answer.is_success else None


def _api(settings: Settings) -> str | None:
    """Return the address of the API; None if it is unknown."""
    try:
        return api_address(settings, environment_with_file())
    except CommandFailedError:
        return None


def _local_state(settings: Settings) -> dict[str, Any] | None:
    """Return what the supervisor of the local stack reports about its processes; None if none runs."""
    try:
        from highwater.deploy.local.state import living, read_state
    except ImportError:  # installed without the extra `local`
        return None
    state = read_state(settings.data_dir)
    return state if state is not None and living(state["supervisor"]) is not None else None


async def _ends(settings: Settings) -> dict[str, int]:
    """Return the sum of the next offsets of every catalogued topic on the broker."""
    from highwater.connectors.kafka.admin import Admin
    from highwater.schemas.topics import all_topics

    admin = Admin(kafka_client(settings))
    counts = await admin.partition_counts()
    places = [(one.name, p) for one in all_topics() for p in range(counts.get(one.name, 0))]
    found: dict[str, int] = {}
    for (topic, _), end in (await admin.log_ends(places)).items():
        found[topic] = found.get(topic, 0) + end
    return found


def _memory(state: dict[str, Any] | None) -> dict[str, int]:
    """Return the memory of each process of the local stack, with its children."""
    if state is None:
        return {}
    import psutil

    from highwater.deploy.local.state import living

    found = {}
    for part in state["parts"]:
        process = living(part)
        if process is None:
            continue
        size = 0
        for one in (process, *process.children(recursive=True)):
            try:
                size += one.memory_info().rss
            except psutil.NoSuchProcess:  # it has ended since it was listed
                continue
        found[part["name"]] = size
    return found
