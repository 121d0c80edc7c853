"""Policies: the current thresholds, and a backtest of them and another policy side by side.

Invariant: a backtest runs in a process of its own, one at a time, so that the API answers meanwhile; it changes
nothing.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from nicegui import ui

from highwater.api.core.access import Access, Scope
from highwater.api.core.auth import Role
from highwater.api.dashboard import figures
from highwater.api.dashboard.tables import table_html
from highwater.api.dashboard.view import View, heading, note, page, set_html, text
from highwater.api.feeds.plots import picture
from highwater.schemas.errors import HighwaterError
from highwater.streams.identity.rate_limits import RateLimit

# A year and 10,000 readers take seconds; larger backtests belong in the terminal.
SECONDS_MAX = 120
_USERS_MAX = 20_000
_DAYS_MAX = 3_660
_TEXT_MAX = 20_000
_EXAMPLE = """[plans.pro]
novelty_count_min = 10
rebuild_interval_seconds = 3600
"""
_COLUMNS = (
    *(
        "policy",
        "requests#",
        "rebuilds#",
        "per user and day#",
        "skipped#",
        "median staleness#",
        "95 of 100#",
        "longest#",
    ),
    *("clustering#", "titles asked#", "USD#"),
)

# A process of its own for seconds.
BACKTEST = Access(Role.ADMIN, Scope.FEEDS, limit=RateLimit.PLAN, cost=10)

_running = asyncio.Lock()


class BacktestFailedError(HighwaterError):
    """The backtest failed. Read its message."""


def register() -> None:
    """Register the page."""
    page("/policies", "Policies")(_build)


async def _build(view: View) -> None:
    policy = view.policy
    heading("The policy that decides now")
    lines = "".join(
        f"<tr><td><b>{text(name)}</b></td><td>{plan.novelty_count_min:,} insights</td>"
        f"<td>{figures.seconds(plan.rebuild_interval_seconds)}</td><td>{figures.seconds(plan.active_within_seconds)}</td>"
        f"<td>{figures.seconds(plan.cooldown_seconds)}</td></tr>"
        for name, plan in policy.plans.items()
    )
    columns = (
        "plan",
        "due at this many new insights",
        "or after this time",
        "for users seen within",
        "not again within",
    )
    ui.html(table_html(columns, lines), sanitize=False).classes("full-width")
    note(f"Hash {policy.hash}: each recorded decision names its policy.")
    if not view.is_admin:
        note("A backtest requires the role admin.")
        return
    with ui.column().classes("hw-card"):
        heading("Backtest")
        note("What the live policy and this one would have done, over the stored insights with simulated readers.")
        words = (
            ui.textarea("Another policy (TOML)", value=_EXAMPLE)
            .props("outlined autogrow")
            .classes("full-width hw-mono")
        )
        with ui.row().classes("hw-row"):
            days = ui.number("Days back", value=365, min=1, max=_DAYS_MAX, step=30).props("dense outlined")
            users = ui.number("Readers", value=1_000, min=1, max=_USERS_MAX, step=100).props("dense outlined")
            button = ui.button("Run", icon="play_arrow").props("no-caps")
            waiting = ui.spinner(size="sm")
        waiting.set_visibility(visible=False)
        result = ui.html("", sanitize=False).classes("full-width")

    async def run() -> None:
        button.disable()
        waiting.set_visibility(visible=True)
        try:
            await view.require(Role.ADMIN)
            await view.count(BACKTEST)
            document = await backtest(
                words.value or "", min(int(users.value or 1), _USERS_MAX), min(int(days.value or 1), _DAYS_MAX)
            )
            set_html(result, _table(document["policies"]) + _plot(document["policies"]))
            view.tell(None)
        except HighwaterError as error:
            view.tell(str(error))
        finally:
            button.enable()
            waiting.set_visibility(visible=False)

    button.on_click(run)
    view.live(5.0, _nothing)


async def _nothing() -> None:
    """Do nothing: the page is static."""


async def backtest(policy: str, users: int, days: int) -> dict[str, Any]:
    """Return the output of `highwater backtest --json` for the live policy and another, with simulated readers.

    Raises:
        BacktestFailedError: it ended with an error, or took too long.
    """
    if len(policy) > _TEXT_MAX:
        raise BacktestFailedError(f"a policy may have at most {_TEXT_MAX:,} characters")
    async with _running:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "other.toml"
            await asyncio.to_thread(file.write_text, policy, "utf-8")
            return await _run("--policy", str(file), "--population", str(users), "--from", f"-{days}d")


async def _run(*arguments: str) -> dict[str, Any]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "highwater.api.cli.main", "backtest", "--json", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        told, said = await asyncio.wait_for(child.communicate(), SECONDS_MAX)
    except asyncio.CancelledError:
        child.kill()
        raise
    except TimeoutError as error:
        child.kill()
        await child.wait()
        raise BacktestFailedError(f"the backtest took more than {SECONDS_MAX} s; try fewer readers") from error
    if not told:
        lines = said.decode("utf-8", "replace").strip().splitlines()
        raise BacktestFailedError(lines[-1] if lines else f"the backtest ended with {child.returncode}")
    found: dict[str, Any] = orjson.loads(told)
    return found


def _table(policies: Sequence[Mapping[str, Any]]) -> str:
    return table_html(_COLUMNS, "".join(map(_line, policies)))


def _plot(policies: Sequence[Mapping[str, Any]]) -> str:
    drawn = picture(policies, "Plot of the backtest; the table above has the same figures")
    return f'<div class="hw-scroll" tabindex="0" role="region" aria-label="Plot of the backtest">{drawn}</div>'


def _line(one: Mapping[str, Any]) -> str:
    daily, usd = one["rebuilds_per_user_day"], one["llm_cost_usd"]
    cells = (
        *(f"<b>{text(one['policy'])}</b>", f"{one['requests']:,}", f"{one['rebuilds']:,}"),
        *(figures.DASH if daily is None else f"{daily:.3f}", f"{one['skips']:,}"),
        *(figures.seconds(one[f"staleness_{name}_seconds"]) for name in ("p50", "p95", "max")),
        *(figures.seconds(one["clustering_seconds"]), f"{one['llm_clusters_titled']:,}"),
        figures.DASH if usd is None else f"{usd:,.2f}",
    )
    return f"<tr><td>{cells[0]}</td>" + "".join(f'<td class="hw-number">{cell}</td>' for cell in cells[1:]) + "</tr>"
