"""Clusters as a map: every insight a point, every cluster a colour and its label.

Invariant: a drawing of many points is thinned evenly, with a notice; texts of points are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

# Points with their texts that keep the page below 500 kB, and that a browser moves without effort; more are thinned.
POINTS_MAX = 1_000
# Labels that fit without covering each other.
LABELS_MAX = 14
_WIDTH, _HEIGHT, _MARGIN = 900, 520, 46
_LABEL_CHARACTERS = 28
_LETTER_WIDTH = 7.2
# Distinct for most kinds of colour blindness, readable on light and dark (after Okabe and Ito).
_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#b8860b",
    "#56b4e9",
    "#7a5cc4",
    "#6b8e23",
    "#c0392b",
    "#2f8f9d",
)
_OUTSIDE = "#8d98a3"


@dataclass(frozen=True, slots=True)
class Point:
    """An insight on the map; `cluster` None: in no cluster."""

    insight_id: str
    x: float
    y: float
    cluster: int | None


@dataclass(frozen=True, slots=True)
class Map:
    """The drawn points, and their total number."""

    points: tuple[Point, ...]
    total: int


def colour(cluster: int) -> str:
    """Return the colour of a cluster by its place."""
    return _COLOURS[cluster % len(_COLOURS)]


def _ink(cluster: int) -> str:
    """Return the colour of a cluster's label: mixed with that of the text, so that it is readable on light and dark."""
    return f"color-mix(in srgb,{colour(cluster)} 55%,var(--hw-text))"


def points_of(document: Mapping[str, Any]) -> Map:
    """Return the points of a version of clusters as the API serves it."""
    found = []
    for number, cluster in enumerate(document["clusters"]):
        places = cluster.get("positions") or ()
        found += [Point(i, x, y, number) for i, (x, y) in zip(cluster["insight_ids"], places, strict=False)]
    outside = document.get("outside") or {}
    for insight_id, place in zip(outside.get("insight_ids", ()), outside.get("positions", ()), strict=False):
        if place is not None:
            found.append(Point(insight_id, place[0], place[1], None))
    step = -(-len(found) // POINTS_MAX) or 1
    return Map(tuple(found[::step]), len(found))


def draw(document: Mapping[str, Any], found: Map, texts: Mapping[str, str]) -> str:
    """Return the map as SVG; `texts` are the tooltips of points."""
    if not found.points:
        return ""
    scale = _Scale.of(found.points)
    # Points in no cluster are at the bottom.
    ordered = sorted(found.points, key=lambda point: point.cluster is not None)
    dots = "".join(_dot(point, scale, texts) for point in ordered)
    labels = _labels(document["clusters"][:LABELS_MAX], scale)
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return f'<svg class="hw-map" {box} role="img" aria-label="Map of the clusters">{dots}{labels}</svg>'


@dataclass(frozen=True, slots=True)
class _Scale:
    """Converts places to the drawing, with the same scale for both axes, so that distances are preserved."""

    left: float
    bottom: float
    factor: float
    indent_x: float
    indent_y: float

    @classmethod
    def of(cls, points: Sequence[Point]) -> _Scale:
        left, right = min(p.x for p in points), max(p.x for p in points)
        bottom, top = min(p.y for p in points), max(p.y for p in points)
        room_x, room_y = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN
        factor = min(room_x / max(right - left, 1e-9), room_y / max(top - bottom, 1e-9))
        return cls(left, bottom, factor, (room_x - factor * (right - left)) / 2, (room_y - factor * (top - bottom)) / 2)

    def place(self, x: float, y: float) -> tuple[float, float]:
        return (
            _MARGIN + self.indent_x + (x - self.left) * self.factor,
            _HEIGHT - _MARGIN - self.indent_y - (y - self.bottom) * self.factor,
        )


def _dot(point: Point, scale: _Scale, texts: Mapping[str, str]) -> str:
    x, y = scale.place(point.x, point.y)
    fill, radius = (_OUTSIDE, 2.6) if point.cluster is None else (colour(point.cluster), 4)
    opacity = 0.55 if point.cluster is None else 0.85
    told, number = (
        escape(texts.get(point.insight_id) or point.insight_id),
        "" if point.cluster is None else point.cluster,
    )
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}" fill-opacity="{opacity}" data-cluster="{number}" '
        f'data-id="{escape(point.insight_id)}" data-text="{told}"/>'
    )


def _labels(clusters: Sequence[Mapping[str, Any]], scale: _Scale) -> str:
    """Return the labels, the largest cluster's first; one that fits neither above nor below its cluster is left to the legend."""
    taken: list[tuple[float, float, float, float]] = []
    found = []
    for number, cluster in enumerate(clusters):
        if cluster.get("position") is None:
            continue
        x, y = scale.place(*cluster["position"])
        words = cluster["label"]
        short = words if len(words) <= _LABEL_CHARACTERS else words[: _LABEL_CHARACTERS - 1] + "…"
        half = len(short) * _LETTER_WIDTH / 2
        x = min(max(x, half + 6), _WIDTH - half - 6)  # within the drawing, however far out its cluster is
        for baseline in (max(16.0, y - 12), min(_HEIGHT - 6.0, y + 24)):
            box = (x - half, baseline - 13, x + half, baseline + 4)
            if not any(_overlap(box, other) for other in taken):
                taken.append(box)
                found.append(
                    f'<text x="{x:.0f}" y="{baseline:.0f}" text-anchor="middle" style="fill:{_ink(number)}" '
                    f'data-cluster="{number}" data-text="{escape(words)}">'
                    f"{escape(short)}</text>"
                )
                break
    return "".join(found)


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
