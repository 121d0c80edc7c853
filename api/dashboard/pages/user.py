"""A user: pending items, why a rebuild is due or not, the versions, the map of the clusters, the feed, and its explanation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from nicegui import ui

from highwater.api.core.resources import may_read_key
from highwater.api.dashboard import consequences, figures
from highwater.api.dashboard.actions import Actions
from highwater.api.dashboard.browsing import of_key
from highwater.api.dashboard.clusters_panel import ClustersPanel
from highwater.api.dashboard.explained import explain_card
from highwater.api.dashboard.tables import numbers, table_html
from highwater.api.dashboard.tiles import linked, linked_tile, loading
from highwater.api.dashboard.view import View, chip, heading, link, note, page, segment, set_html, text
from highwater.api.dashboard.why import Why, why
from highwater.api.feeds.routes_writes import ERASE, REBUILD
from highwater.connectors.dashboard import read_model as dashboard_reads
from highwater.connectors.feeds import read_model as feeds_reads
from highwater.connectors.feeds.demands import PENDING, Demand, newest_demands
from highwater.connectors.feeds.read_model import UserRow
from highwater.schemas.feeds import INSIGHT_INGESTED
from highwater.streams.wording import counted

_REFRESH_SECONDS = 3.0
_LISTED_MAX = 50
# Channels with pending items; the rest are counted.
_CHANNELS_MAX = 15
_DEMANDS_MAX = 5
_REBUILD, _ERASE = "Rebuild now", "Erase the user's data"
_TONES = {"rebuilt": "hw-good", "failed": "hw-bad", PENDING: "hw-warn"}


def register() -> None:
    """Register the page."""
    page("/user", "Users")(_build)


async def _build(view: View) -> None:
    user = view.asked("id") or view.only_user or ""
    with ui.row().classes("hw-row"):
        search = ui.input("Find a user", value=user).props("dense outlined clearable").style("width:min(100%,22rem)")
        search.on("keydown.enter", lambda: ui.navigate.to(link("/user", id=search.value or "")))
    if user:
        await _user(view, user)
        return
    found = ui.html(loading("the users"), sanitize=False).classes("full-width")

    async def refresh() -> None:
        rows = await dashboard_reads.users(
            view.services.database.require(), search.value or "", view.only_user, _LISTED_MAX
        )
        set_html(found, _list(rows, view.services.clock()))

    view.live(_REFRESH_SECONDS, refresh)


def _list(rows: list[dict[str, Any]], now_ms: int) -> str:
    if not rows:
        return '<div class="hw-card hw-muted">No user yet: one is made by a subscription, a plan or an activity.</div>'
    delays = [row["delay_reason"] for row in rows if row["delay_reason"] is not None]
    delayed = _delayed(f"{delays[0]} ({counted(len(delays), 'user')} of this list)") if delays else ""
    lines = "".join(
        f'<tr data-key="{text(row["user_id"])}"><td>{_link(row["user_id"])}</td>'
        f"<td>{text(row['plan'])}</td>{numbers(_version(row['user_id'], row['cluster_version']))}"
        f"<td>{figures.ago(row['last_active_at'], now_ms)}</td>"
        f"<td>{figures.ago(row['last_clustered_at'], now_ms)}</td>"
        f"<td>{_state(row)}</td></tr>"
        for row in rows
    )
    return delayed + table_html(("user", "plan", "version#", "seen", "clustered", "state"), lines, "Users")


def _state(row: Mapping[str, Any]) -> str:
    if row["in_flight"]:
        return chip("rebuild in progress", "hw-warn")
    return chip("rebuild delayed", "hw-bad") if row["delay_reason"] is not None else ""


def _delayed(reason: str) -> str:
    return f'<div class="hw-card hw-bad">Rebuilds are delayed: {text(reason)}</div>'


def _link(user: str) -> str:
    return f'<a href="{text(link("/user", id=user))}">{text(user)}</a>'


def _version(user: str, version: int | None) -> str:
    """A version of clusters, which leads to the page as of it."""
    return linked(str(version or ""), link("/user", id=user, version=str(version)) + "#versions")


async def _user(view: View, user: str) -> None:
    if not may_read_key(view.visitor.principal, f"feed:{user}"):
        note("This key is bound to another user.")
        return
    heading(user)
    actions = _UserActions(view, user)
    actions.build()
    tiles = ui.html("", sanitize=False).classes("full-width")
    with ui.element("div").classes("hw-two"):
        due = ui.html("", sanitize=False).classes("hw-card")
        pending = ui.html("", sanitize=False).classes("hw-card")
    clusters = ClustersPanel(view, user)
    clusters.build()
    demands = ui.html("", sanitize=False).classes("hw-card")
    explain_card(view, "Explain the feed", lambda explainer: explainer.feed(user))

    async def refresh() -> None:
        services = view.services
        pool = services.database.require()
        (row, by_channel), demanded = await asyncio.gather(
            feeds_reads.pending_by_channel(pool, user), newest_demands(pool, user, _DEMANDS_MAX)
        )
        told = why(row.facts(by_channel), len(by_channel), view.policy, services.clock())
        delayed = (
            "" if row.delay is None else _delayed(f"{row.delay.reason} ({counted(row.delay.times, 'time')} in a row)")
        )
        set_html(tiles, delayed + _tiles(row, by_channel, services.clock()))
        actions.show(row.cluster_version, by_channel)
        set_html(due, _due(row, told))
        set_html(pending, _pending(by_channel, sees_all=view.sees_all))
        set_html(demands, _demands(user, demanded))
        await clusters.refresh(row.cluster_version)

    view.live(_REFRESH_SECONDS, refresh)


class _UserActions:
    """The actions on a user: rebuild now, and erase the user's data."""

    def __init__(self, view: View, user: str) -> None:
        self._view = view
        self._user = user
        self._version = 0
        self._pending = 0

    def build(self) -> None:
        """Add the buttons that the visitor may use."""
        self._actions = Actions(self._view)
        with self._actions.build():
            self._actions.offer(REBUILD, _REBUILD, "refresh", self._rebuild)
            self._actions.offer(ERASE, _ERASE, "delete_forever", self._erase)

    def show(self, version: int, by_channel: Mapping[str, int]) -> None:
        """Note the state of the user."""
        self._version, self._pending = version, sum(max(0, number) for number in by_channel.values())
        self._actions.show(_REBUILD, _ERASE)

    async def _rebuild(self) -> None:
        await self._actions.run(
            consequences.rebuild_user(self._user, self._pending, self._version),
            "A rebuild was requested; its outcome appears under “Manual rebuilds”.",
            lambda: self._view.send("POST", f"/api/users/{segment(self._user)}/rebuild"),
        )

    async def _erase(self) -> None:
        await self._actions.run(
            consequences.erase_user(self._user),
            "The data of the user is being erased.",
            lambda: self._view.send("DELETE", f"/api/users/{segment(self._user)}/data"),
        )


def _tiles(row: UserRow, by_channel: Mapping[str, int], now_ms: int) -> str:
    pending = sum(max(0, number) for number in by_channel.values())
    return (
        '<div class="hw-tiles">'
        + linked_tile(figures.count(pending), "insights pending", "#pending")
        + linked_tile(figures.count(len(by_channel)), "channels subscribed", "#pending")
        + linked_tile(str(row.cluster_version), "cluster version", "#versions")
        + linked_tile(figures.ago(row.last_clustered_at, now_ms), "clustered", "#versions")
        + linked_tile(row.plan or "free", "plan", "/policies")
        + "</div>"
    )


def _due(row: UserRow, why: Why) -> str:
    state = chip("due", "hw-good") if why.is_due else chip("not due")
    lines = "".join(
        f'<tr><td class="{"hw-good" if one.holds else "hw-warn"}">{"✓" if one.holds else "✗"}</td>'
        f"<td><b>{text(one.name)}</b></td><td>{text(one.told)}</td></tr>"
        for one in why.conditions
    )
    return (
        f'<h2 class="hw">Is a rebuild due? {state}</h2><p style="margin:.25rem 0">{text(why.verdict)}</p>'
        f'<table class="q-table hw-wrap" style="width:100%"><tbody>{lines}</tbody></table>'
        f'<p class="hw-muted hw-small" style="margin:.25rem 0 0">By the plan {text(row.plan or "free")}; '
        '<a href="/policies">its thresholds</a>.</p>'
    )


def _channel(channel: str, *, is_linked: bool) -> str:
    """A channel, which leads to its insights for a visitor who may read topics."""
    return f'<a href="{text(of_key(INSIGHT_INGESTED, channel))}">{text(channel)}</a>' if is_linked else text(channel)


def _pending_of(channel: str, number: int, *, is_linked: bool) -> str:
    return linked(f"{number:,}", of_key(INSIGHT_INGESTED, channel)) if is_linked else f"{number:,}"


def _pending(by_channel: Mapping[str, int], *, sees_all: bool) -> str:
    waiting = sorted(((n, channel) for channel, n in by_channel.items() if n > 0), reverse=True)
    top = waiting[0][0] if waiting else 1
    lines = "".join(
        f'<tr><td style="overflow-wrap:break-word;max-width:16rem;white-space:normal">'
        f"{_channel(channel, is_linked=sees_all)}</td>"
        f'<td style="width:30%"><div class="hw-bar"><i style="width:{100 * number / top:.0f}%"></i></div></td>'
        f'<td class="hw-number" style="width:1%">{_pending_of(channel, number, is_linked=sees_all)}</td></tr>'
        for number, channel in waiting[:_CHANNELS_MAX]
    )
    rest = len(waiting) - _CHANNELS_MAX
    told = (
        f"and {counted(rest, 'more channel')}"
        if rest > 0
        else f"no pending insights in {counted(len(by_channel) - len(waiting), 'channel')}"
        if by_channel
        else "no channel is subscribed"
    )
    return (
        '<h2 class="hw" id="pending">Pending by channel</h2>'
        f'<table class="q-table" style="width:100%"><tbody>{lines}</tbody></table>'
        f'<p class="hw-muted hw-small" style="margin:0">{told}</p>'
    )


def _demands(user: str, found: list[Demand]) -> str:
    """Return the outcomes of the last manual rebuilds."""
    lines = "".join(
        f"<tr><td>{figures.moment(one.demanded_at_ms)}</td><td>{chip(one.status, _TONES.get(one.status, 'hw-muted'))}</td>"
        f"<td>{text(one.reason)}</td>{numbers(_version(user, one.cluster_version))}"
        f'<td class="hw-mono">{text(one.position)}</td></tr>'
        for one in found
    )
    none = '<p class="hw-muted hw-small" style="margin:0">None.</p>'
    columns = ("requested (UTC)", "outcome", "why", "version#", "asked at")
    return '<h2 class="hw">Manual rebuilds</h2>' + (table_html(columns, lines) if found else none)
