"""Curves over time as an SVG: panels one below the other, with one axis of time. Made of strings, so it needs nothing.

A panel has its own scale, from 0 to the greatest value of its curves. Shades mark phases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]

_WIDTH, _LEFT, _RIGHT = 960, 76, 190
_TOP, _PANEL, _GAP = 40, 120, 44
# Colours that people with a colour deficiency can distinguish (Okabe and Ito, 2008).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_LINES = 4


@dataclass(frozen=True, slots=True)
class Curve:
    """Points by time; a gap where none is."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves of one unit."""

    title: str
    curves: Sequence[Curve]


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time with a name."""

    name: str
    begin: float
    end: float


def draw(title: str, panels: Sequence[Panel], phases: Sequence[Phase], time_unit: str) -> str:
    """The document."""
    end = max((x for panel in panels for curve in panel.curves for x, _ in curve.points), default=1.0) or 1.0
    height = _TOP + len(panels) * (_PANEL + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, _TOP + number * (_PANEL + _GAP), end, phases, is_first=number == 0)
    steps = _steps(end)
    parts += [_text(_x(at, end), height - 12, f"{at:g}", "middle") for at in steps]
    parts.append(_text(_WIDTH - _RIGHT + 8, height - 12, time_unit, "start"))
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, top: float, end: float, phases: Sequence[Phase], *, is_first: bool) -> list[str]:
    most = _rounded(max((y for curve in panel.curves for _, y in curve.points), default=1.0) or 1.0)
    bottom = top + _PANEL
    parts = []
    for number, phase in enumerate(phases):
        left, right = _x(phase.begin, end), _x(phase.end, end)
        if number % 2:
            parts.append(
                f'<rect x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{_PANEL}" fill="#f0e6d8"/>'
            )
        if is_first:
            parts.append(_text((left + right) / 2, top - 4, phase.name, "middle"))
    for step in range(_LINES + 1):
        y = bottom - _PANEL * step / _LINES
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{most * step / _LINES:,.4g}", "end"))
    parts.append(_text(_LEFT, bottom + 14, panel.title, "start"))
    for number, curve in enumerate(panel.curves):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(f"{_x(x, end):.1f},{bottom - _PANEL * y / most:.1f}" for x, y in curve.points)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
        parts.append(_text(_WIDTH - _RIGHT + 10, top + 12 + 15 * number, curve.name, "start", colour))
    return parts


def _x(at: float, end: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / end


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _rounded(most: float) -> float:
    """The next number of one or two digits that divides well by four."""
    size = 10.0 ** math.floor(math.log10(most))
    return float(next(step * size for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * size >= most))


def _steps(end: float) -> list[float]:
    size = _rounded(end) / 8
    return [number * size for number in range(int(end / size) + 1)]
