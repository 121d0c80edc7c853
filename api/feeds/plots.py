"""Draws bars and lines of a backtest: laid out once, written as SVG or as PNG.

Invariant: the picture shows the values of the table; every bar has its number and its policy's name, so that colours
are not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from highwater.schemas.envelope import iso_from_ms

WIDTH, PANEL_HEIGHT, MARGIN = 960, 190, 20
# Okabe and Ito's colours, which everybody can distinguish; the live policy is black.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7")
_NAME_WIDTH, _VALUE_WIDTH = 170, 90
_PANELS = (
    ("rebuilds_per_user_day", "rebuilds per user and day"),
    ("staleness_p50_seconds", "staleness p50, hours"),
    ("staleness_p95_seconds", "staleness p95, hours"),
    ("clustering_seconds", "clustering, hours"),
)
_SECONDS_AN_HOUR = 3_600
_DAY_MS = 86_400_000
_DAYS_SINGLE_MAX = 90


class Box(NamedTuple):
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    colour: str


class Line(NamedTuple):
    """A line through points."""

    points: tuple[tuple[float, float], ...]
    colour: str


class Label(NamedTuple):
    """Text that begins at x; y is its baseline."""

    x: float
    y: float
    text: str
    size: int = 13


Mark = Box | Line | Label


def write_plot(path: Path, policies: Sequence[Mapping[str, Any]]) -> None:
    """Draw the policies of a backtest into a file; the file name decides the format.

    Raises:
        ValueError: the name ends with neither .svg nor .png.
        OSError: the file cannot be written.
    """
    writers: dict[str, Callable[[Path, list[Mark], int], None]] = {".svg": _write_svg, ".png": _write_png}
    writer = writers.get(path.suffix.lower())
    if writer is None:
        raise ValueError(f"{path} ends with neither .svg nor .png")
    marks, height = layout(policies)
    writer(path, marks, height)


def layout(policies: Sequence[Mapping[str, Any]]) -> tuple[list[Mark], int]:
    """Return the marks of the picture, and its height."""
    marks: list[Mark] = []
    bar_height = 18
    y = float(MARGIN)
    for name, title in _PANELS:
        marks.append(Label(MARGIN, y + 12, title, 15))
        y += 22
        values = [_shown(name, policy[name]) for policy in policies]
        most = max((value for value in values if value is not None), default=0) or 1
        room = WIDTH - 2 * MARGIN - _NAME_WIDTH - _VALUE_WIDTH
        for number, (policy, value) in enumerate(zip(policies, values, strict=True)):
            x = MARGIN + _NAME_WIDTH
            marks.append(Label(MARGIN, y + 13, _short(str(policy["policy"]))))
            marks.append(Box(x, y, room * (value or 0) / most, bar_height - 4, COLOURS[number % len(COLOURS)]))
            marks.append(Label(x + room * (value or 0) / most + 6, y + 13, "-" if value is None else f"{value:,.3g}"))
            y += bar_height
        y += 14
    marks += _by_day(policies, y)
    return marks, int(y) + PANEL_HEIGHT + 2 * MARGIN


def _by_day(policies: Sequence[Mapping[str, Any]], top: float) -> list[Mark]:
    days = sorted({int(day) for policy in policies for day in policy["rebuilds_by_day"]})
    if not days:
        return [Label(MARGIN, top + 12, "no rebuilds", 15)]
    # Over a long time daily values would hide the difference between policies.
    mean_of = 7 if days[-1] - days[0] > _DAYS_SINGLE_MAX else 1
    rows = [_means(policy["rebuilds_by_day"], days[0], days[-1], mean_of) for policy in policies]
    most = max(max(row) for row in rows) or 1
    bottom, room = top + PANEL_HEIGHT, WIDTH - 2 * MARGIN - _VALUE_WIDTH
    title = "rebuilds a day" + (f", mean of {mean_of} days" if mean_of > 1 else "")
    marks: list[Mark] = [
        Label(MARGIN, top + 12, title, 15),
        Line(((MARGIN, bottom), (MARGIN + room, bottom)), "#888888"),
        Label(MARGIN + room + 6, top + 34, f"{most:,.0f}"),
        Label(MARGIN, bottom + 16, iso_from_ms(days[0] * _DAY_MS)[:10]),
        Label(MARGIN + room - 75, bottom + 16, iso_from_ms(days[-1] * _DAY_MS)[:10]),
    ]
    for number, row in enumerate(rows):
        step = room / max(1, len(row) - 1)
        points = tuple(
            (MARGIN + step * place, bottom - (PANEL_HEIGHT - 30) * value / most) for place, value in enumerate(row)
        )
        marks.append(Line(points, COLOURS[number % len(COLOURS)]))
    return marks


def _means(by_day: Mapping[str, int], first: int, last: int, mean_of: int) -> list[float]:
    counts = [by_day.get(str(day), 0) for day in range(first, last + 1)]
    return [
        sum(counts[max(0, end - mean_of) : end]) / len(counts[max(0, end - mean_of) : end])
        for end in range(1, len(counts) + 1)
    ]


def _shown(name: str, value: float | None) -> float | None:
    return value / _SECONDS_AN_HOUR if value is not None and name.endswith("_seconds") else value


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:21]}…"


def _write_svg(path: Path, marks: list[Mark], height: int) -> None:
    path.write_text(_svg(marks, height) + "\n", encoding="utf-8")


def picture(policies: Sequence[Mapping[str, Any]], label: str) -> str:
    """Return the picture as SVG for a page; `label` names it for screen readers."""
    marks, height = layout(policies)
    return _svg(marks, height, f' class="hw-plot" role="img" aria-label="{escape(label)}"')


def _svg(marks: list[Mark], height: int, attributes: str = "") -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"{attributes}>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for mark in marks:
        match mark:
            case Box(x, y, width, tall, colour):
                parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{tall:.1f}" fill="{colour}"/>')
            case Line(points, colour):
                drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
                parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.2"/>')
            case Label(x, y, text, size):
                parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{escape(text)}</text>')
    return "\n".join([*parts, "</svg>"])


def _write_png(path: Path, marks: list[Mark], height: int) -> None:
    from PIL import Image, ImageDraw, ImageFont

    scale = 2  # readable on a dense screen
    image = Image.new("RGB", (WIDTH * scale, height * scale), "#ffffff")
    draw = ImageDraw.Draw(image)
    for mark in marks:
        match mark:
            case Box(x, y, width, tall, colour):
                if width > 0:
                    corners = (x * scale, y * scale, (x + width) * scale, (y + tall) * scale)
                    draw.rectangle(corners, fill=colour)
            case Line(points, colour):
                draw.line([(x * scale, y * scale) for x, y in points], fill=colour, width=scale)
            case Label(x, y, text, size):
                font = ImageFont.load_default(size * scale)
                draw.text((x * scale, y * scale), text, fill="#000000", font=font, anchor="ls")
    image.save(path, "PNG")
