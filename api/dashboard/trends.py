"""The charts of one topic or group over the last six hours or day, on its page.

Invariant: for those of the catalogue, the whole span is recorded; for those of other applications, recording begins
when the page is first opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from highwater.api.dashboard import charts
from highwater.api.dashboard.view import View, set_html
from highwater.schemas.envelope import iso_from_ms
from highwater.streams.clock import monotonic_seconds
from highwater.streams.history import KEPT_MS, WATCHED_MAX

_SPAN_MS = 6 * 3_600_000
_OF_OTHERS = (
    "Of another application: recorded since this page was opened first, and until a day after it was opened last "
    f"(up to {WATCHED_MAX} groups and as many topics)."
)
# A sample is taken every minute.
_EACH_SECONDS = 20.0


class Trends:
    """The charts in one browser; `name` is that of their series."""

    def __init__(self, view: View, metrics: Sequence[str], name: str) -> None:
        self._view = view
        self._metrics = metrics
        self._name = name
        self._charts: dict[str, ui.html] = {}
        self._drawn_at: float | None = None

    def build(self) -> None:
        """Add the charts, hidden until there is something to draw."""
        with ui.element("div").classes("hw-card hw-two") as self._card:
            self._charts = {name: ui.html("", sanitize=False).classes("full-width") for name in self._metrics}
        self._card.set_visibility(visible=False)

    async def refresh(self) -> None:
        """Redraw them periodically."""
        now = monotonic_seconds()
        if self._drawn_at is not None and now - self._drawn_at < _EACH_SECONDS:
            return
        self._drawn_at = now
        to_ms = self._view.services.clock()
        span = {"from": iso_from_ms(to_ms - _SPAN_MS), "to": iso_from_ms(to_ms)}
        for metric, chart in self._charts.items():
            found = await self._view.get("/api/history", metric=metric, **span)
            set_html(chart, charts.draw(of_one(found, self._name)))
        self._card.set_visibility(visible=True)


def of_one(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a response of `GET /api/history` with only one series.

    A name without samples had nothing to count, such as no lag: its value is 0 wherever a sample was taken.
    """
    series = [one for one in document["series"] if one["name"] == name]
    if not series and document["series"]:
        columns = zip(*(one["values"] for one in document["series"]), strict=True)
        zeros = [None if all(value is None for value in column) else 0.0 for column in columns]
        series = [{"name": name, "values": zeros}]
    return {**document, "series": series}


class OwnHistory:
    """The chart of a topic or group whose history the API records itself: `GET /api/…/history`, over a day."""

    def __init__(self, view: View, address: str) -> None:
        self._view = view
        self._address = address
        self._drawn_at: float | None = None

    def build(self) -> None:
        """Add the chart, hidden until there is something to draw."""
        with ui.element("div").classes("hw-card full-width") as self._card:
            self._chart = ui.html("", sanitize=False).classes("full-width")
            self._note = ui.html("", sanitize=False)
        self._card.set_visibility(visible=False)

    async def refresh(self, *, is_catalogued: bool) -> None:
        """Redraw it periodically."""
        now = monotonic_seconds()
        if self._drawn_at is not None and now - self._drawn_at < _EACH_SECONDS:
            return
        self._drawn_at = now
        to_ms = self._view.services.clock()
        span = {"from": iso_from_ms(to_ms - KEPT_MS), "to": iso_from_ms(to_ms)}
        set_html(self._chart, charts.draw(await self._view.get(self._address, **span)))
        set_html(self._note, "" if is_catalogued else f'<p class="hw-muted hw-small">{_OF_OTHERS}</p>')
        self._card.set_visibility(visible=True)
