"""The first page: the overall state, the throughput, and the flow of data as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nicegui import ui

from highwater.api.dashboard import charts, figures
from highwater.api.dashboard.addresses import group_address, topic_address
from highwater.api.dashboard.flow import LATE_SECONDS, Behind, Lane, draw, lane_of, lanes
from highwater.api.dashboard.hub import KEPT_SECONDS
from highwater.api.dashboard.tiles import linked_tile
from highwater.api.dashboard.view import View, chip, heading, note, page, set_html, text
from highwater.connectors.kafka.stopped import Stopped
from highwater.schemas.envelope import iso_from_ms
from highwater.streams.clock import monotonic_seconds
from highwater.streams.history import METRICS

_REFRESH_SECONDS = 2.0
# A sample is taken every minute.
_CHARTS_SECONDS = 20.0
_RANGES = {"1h": 1, "6h": 6, "24h": 24}
_LANES = lanes()
_PARTS = ("database", "kafka", "schema_registry", "redis")


def register() -> None:
    """Register the page."""
    page("/", "Overview")(_build)


async def _build(view: View) -> None:
    parts = ui.html(_parts(view), sanitize=False).classes("full-width")
    stopped = ui.html("", sanitize=False).classes("full-width")
    tiles = ui.html(_tiles(view), sanitize=False).classes("full-width")
    drawn = {}
    rates = view.hub.rates.per_second() or None
    if view.sees_all:
        for lane in _LANES:
            with ui.column().classes("hw-card"):
                heading(lane.title)
                with ui.element("div").classes("hw-scroll").props(f'tabindex=0 role=region aria-label="{lane.title}"'):
                    drawn[lane.name] = ui.html(draw(lane, rates, _behind(view, lane)), sanitize=False)
                    drawn[lane.name].classes("full-width")
        history = _History(view)
        history.build()
        note(
            "Boxes are processes. Lines are topics, with events per second over the last ten seconds; dotted lines are "
            "transactions in PostgreSQL. Point at a line to see the names of its topics."
        )
    else:
        note("This key is bound to one user: it can open the pages, queries and jobs of that user, and the leagues.")

    async def refresh() -> None:
        set_html(parts, _parts(view))
        if view.sees_all:
            set_html(stopped, stopped_lines(await view.services.degraded.stopped()))
        set_html(tiles, _tiles(view))
        if not drawn:
            return
        rates = view.hub.rates.per_second() or None
        for lane in _LANES:
            set_html(drawn[lane.name], draw(lane, rates, _behind(view, lane)))
        await history.refresh()
        view.tell(view.hub.problem)

    view.live(_REFRESH_SECONDS, refresh, ahead=view.hub.is_current)


class _History:
    """The charts over the range in the address."""

    def __init__(self, view: View) -> None:
        self._view = view
        asked = view.asked("range", "1h")
        self._range = asked if asked in _RANGES else "1h"
        self._charts: dict[str, ui.html] = {}
        self._drawn_at: float | None = None
        # The page already contains all charts: the first refresh, for which the page waits, need not read them.
        self._came_with_page = True

    def build(self) -> None:
        """Add the charts."""
        links = "".join(
            f'<a href="/?range={name}"{" aria-current=true" if name == self._range else ""}>{hours} h</a>'
            for name, hours in _RANGES.items()
        )
        with ui.column().classes("hw-card"):
            ui.html(
                f'<div class="hw-row"><h2 class="hw">History</h2><nav class="hw-ranges" aria-label="Range of the charts">'
                f"{links}</nav></div>",
                sanitize=False,
            ).classes("full-width")
            with ui.element("div").classes("hw-two"):
                for name in METRICS:
                    drawn = self._view.hub.last_shared(self._named(name), KEPT_SECONDS) or ""
                    self._came_with_page = self._came_with_page and bool(drawn)
                    self._charts[name] = ui.html(drawn, sanitize=False).classes("full-width")
            note(
                "Times are UTC. A gap in a line means that nothing was recorded. Point at a title to see what it counts."
            )

    async def refresh(self) -> None:
        """Redraw the charts periodically."""
        now = monotonic_seconds()
        came_with_page, self._came_with_page = self._came_with_page, False
        if came_with_page:
            return
        if self._drawn_at is not None and now - self._drawn_at < _CHARTS_SECONDS:
            return
        self._drawn_at = now
        for name, chart in self._charts.items():
            set_html(chart, await self._view.hub.shared(self._named(name), _CHARTS_SECONDS, partial(self._drawn, name)))

    def _named(self, metric: str) -> str:
        """What a chart is called among what all browsers share: everybody who may read `/api/history` reads the same."""
        return f"chart {metric} {self._range}"

    async def _drawn(self, metric: str) -> str:
        to_ms = self._view.services.clock()
        span = {"from": iso_from_ms(to_ms - _RANGES[self._range] * 3_600_000), "to": iso_from_ms(to_ms)}
        return charts.draw(await self._view.get("/api/history", metric=metric, **span))


def _behind(view: View, lane: Lane) -> dict[str, Behind]:
    """Return how far each process is behind on the topics of a lane: one process may read those of several."""
    found = {}
    for lag in view.hub.lags:
        events = sum(one.events for one in lag.standings if lane_of(one.topic) == lane.name)
        found[lag.group] = Behind(events, lag.seconds)
    return found


def _parts(view: View) -> str:
    away = view.services.not_ready() | view.services.unavailable_accelerators()
    chips = []
    for name in (*_PARTS, *(name for name in away if name not in _PARTS)):
        shown = name.replace("_", " ")
        chips.append(chip(f"✗ {shown}: {away[name]}", "hw-bad") if name in away else chip(f"✓ {shown}", "hw-good"))
    return f'<div class="hw-row">{"".join(chips)}</div>'


def stopped_lines(stops: Sequence[Stopped]) -> str:
    """Return partitions that consumers stopped because of too many bad events, in red, each with the command that resumes it."""
    lines = [
        f'<p class="hw-bad" role="alert">✗ <a href="{text(group_address(stop.group))}">{text(stop.group)}</a> does not read '
        f'<a href="{text(topic_address(stop.topic))}">{text(f"{stop.topic}/{stop.partition}")}</a> since '
        f"{text(iso_from_ms(stop.stopped_at_ms))}: {stop.dead} of {stop.events} events could not be processed "
        f"({text(stop.reason)}). To dead-letter them and resume: <code>{text(stop.command)}</code></p>"
        for stop in stops
    ]
    return "".join(lines)


def _tiles(view: View) -> str:
    if not view.sees_all:
        return ""
    hub = view.hub
    rates = hub.rates.per_second()
    letters = sum(hub.dead_letters().values())
    late = max(hub.lags, key=lambda lag: (lag.seconds or 0.0, lag.events), default=None)
    waiting = sum(lag.events for lag in hub.lags)
    is_late = late is not None and (late.seconds or 0.0) > LATE_SECONDS
    slowest = "consumers are up to date" if late is None or not late.events else f"furthest behind: {late.group}"
    line = figures.spark(hub.rates.total_history(60), "events a second over two minutes")
    held = sum(hub.held().values())
    return (
        '<div class="hw-tiles">'
        + linked_tile(
            figures.rate(sum(rates.values())) if rates else figures.DASH, "appended to the log", "/topics", more=line
        )
        + linked_tile(figures.count(held) if hub.samples else figures.DASH, "events in the log", "/topics")
        + linked_tile(
            figures.count(waiting) if hub.lags else figures.DASH,
            "unread events, over all consumers",
            "/groups",
        )
        + linked_tile(
            figures.seconds(late.seconds if late is not None and late.events else 0.0) if hub.lags else figures.DASH,
            slowest,
            "/groups" if late is None or not late.events else group_address(late.group),
            tone="hw-warn" if is_late else "",
        )
        + linked_tile(figures.count(letters), "dead letters", "/dead-letters", tone="hw-bad" if letters else "")
        + "</div>"
    )
