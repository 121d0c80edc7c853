"""Charts of a metric over time as SVG. Pure.

Invariants. A line is interrupted where nothing was recorded; nothing is drawn across a gap. External text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, TypeAlias

from highwater.api.dashboard import figures
from highwater.api.dashboard.addresses import group_address, topic_address
from highwater.api.dashboard.map import colour
from highwater.schemas.envelope import iso_from_ms, ms_from_iso
from highwater.streams.wording import counted

# Lines that a person can distinguish; the others are counted.
LINES_MAX = 6
WIDTH, HEIGHT = 640, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 8, 10, 22
_TIME_LABELS = 4
_ROUND = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
# The finest step that a label of an axis shows: events are whole, rates have one digit after the point, times are in ms.
_FINEST: Mapping[str, float] = {"events": 1.0, "events/s": 0.1, "s": 0.001, "ratio": 0.01}

# The name of a line -> its page.
_ADDRESSES: Mapping[str, Callable[[str], str]] = {
    "topic": topic_address,
    "consumer": group_address,
    "stage": lambda _: "/queries",
    "partition": lambda _: "#partitions",
}

Values: TypeAlias = Sequence[float | None]


class Line(NamedTuple):
    """A series with its colour."""

    name: str
    values: Values
    colour: str

    @property
    def last(self) -> float | None:
        """Return its latest value, if one was recorded."""
        return next((value for value in reversed(self.values) if value is not None), None)


def lines_of(series: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return the series with the highest peaks, the highest first."""

    def peak(one: Mapping[str, Any]) -> float:
        return max((value for value in one["values"] if value is not None), default=-1.0)

    ordered = sorted(series, key=lambda one: (-peak(one), one["name"]))[:LINES_MAX]
    return [Line(one["name"], one["values"], colour(number)) for number, one in enumerate(ordered)]


def runs(values: Values) -> list[list[tuple[int, float]]]:
    """Return runs of values without a gap, each with its place."""
    found: list[list[tuple[int, float]]] = []
    is_open = False
    for place, value in enumerate(values):
        if value is None:
            is_open = False
            continue
        if not is_open:
            found.append([])
        found[-1].append((place, value))
        is_open = True
    return found


def top_of(highest: float, finest: float) -> float:
    """Return the top of an axis: a round number not below a value, whose half fits the finest step too."""
    if highest <= 0:
        return 1.0
    wanted = max(highest, finest) * (1 - 1e-9)
    power = 10.0 ** math.floor(math.log10(max(highest, finest)) + 1e-9)
    tops = (step * power for step in _ROUND)
    return next(top for top in tops if top >= wanted and (top <= finest * (1 + 1e-9) or _is_told(top / 2, finest)))


def ticks_of(top: float, finest: float) -> tuple[float, ...]:
    """The values that an axis names: nothing, the top, and the half where its label says what it is."""
    return (0.0, top / 2, top) if _is_told(top / 2, finest) else (0.0, top)


def _is_told(value: float, finest: float) -> bool:
    return abs(value / finest - round(value / finest)) < 1e-6


def value_text(value: float | None, unit: str) -> str:
    """Return a value with its unit in readable form."""
    if value is None:
        return figures.DASH
    if unit == "ratio":
        return f"{100 * value:.0f} %"
    if unit == "s":
        return figures.seconds(value)
    return figures.rate(value) if unit == "events/s" else figures.short_count(value)


def draw(document: Mapping[str, Any]) -> str:
    """Return the chart of a response of `GET /api/history` with its legend, as HTML."""
    lines = lines_of(document["series"])
    if not any(runs(line.values) for line in lines):
        return f"{_head(document)}<p class='hw-muted'>Nothing was recorded in this time. A sample is taken every minute.</p>"
    unit = document["unit"]
    highest = max(value for line in lines for value in line.values if value is not None)
    top = 1.0 if unit == "ratio" else top_of(highest, _FINEST[unit])
    drawn = "".join(_line(line, top, unit) for line in lines)
    label = f"{document['title']}, {counted(len(lines), 'line')}; their latest values are below the chart"
    return (
        f'{_head(document)}<svg class="hw-chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{_axes(document, top, unit)}{drawn}</svg>{_legend(document, lines)}"
    )


def _head(document: Mapping[str, Any]) -> str:
    return f'<h3 class="hw" title="{escape(document["about"])}">{escape(document["title"])}</h3>'


def _y(value: float, top: float) -> float:
    return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - min(value, top) / top)


def _x(place: float, count: int) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * place / max(1, count - 1)


def _line(line: Line, top: float, unit: str) -> str:
    count = len(line.values)
    parts = []
    for run in runs(line.values):
        points = [(_x(place, count), _y(value, top)) for place, value in run]
        if len(points) == 1:  # a line of one point is invisible
            parts.append(f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="2" fill="{line.colour}"/>')
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" stroke="{line.colour}"/>')
    title = f"{line.name}: {value_text(line.last, unit)}"
    return f"<g><title>{escape(title)}</title>{''.join(parts)}</g>"


def _axes(document: Mapping[str, Any], top: float, unit: str) -> str:
    begin, end = ms_from_iso(document["begin"]), ms_from_iso(document["end"])
    parts = []
    for value in ticks_of(top, _FINEST[unit]):
        y = _y(value, top)
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(value_text(value, unit))}</text>'
        )
    for number in range(_TIME_LABELS + 1):
        at_ms = begin + (end - begin) * number // _TIME_LABELS
        x = _x(number, _TIME_LABELS + 1)
        anchor = "end" if number == _TIME_LABELS else "middle" if number else "start"
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 5}" text-anchor="{anchor}">{iso_from_ms(at_ms)[11:16]}</text>')
    return f'<g class="axes">{"".join(parts)}</g>'


def _legend(document: Mapping[str, Any], lines: Sequence[Line]) -> str:
    items = "".join(
        f'<li><span aria-hidden="true" style="background:{line.colour}"></span>'
        f"{_linked(document['label'], line.name, value_text(line.last, document['unit']))}</li>"
        for line in lines
    )
    rest = len(document["series"]) - len(lines)
    more = f'<li class="hw-muted">{rest:,} more with lower peaks</li>' if rest > 0 else ""
    return f'<ul class="hw-legend">{items}{more}</ul>'


def _linked(label: str, name: str, value: str) -> str:
    """Return a line's name and latest value, linked to the page of what they count, if it has one."""
    words = f"{escape(name)} <b>{escape(value)}</b>"
    return f'<a href="{escape(_ADDRESSES[label](name))}">{words}</a>' if label in _ADDRESSES else words
