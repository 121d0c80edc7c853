"""The history of a user's clusters as a river: one band per cluster, as thick as its number of insights, over the
versions. Pure.

Invariants. At every version the bands adjoin without a gap or an overlap. External text is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias

from highwater.api.dashboard.map import colour
from highwater.streams.wording import counted

# Bands that a person can distinguish; the other clusters share one band.
BANDS_MAX = 10
WIDTH, HEIGHT = 900, 300
_MARGIN, _AXIS, _VERSIONS_LABELLED = 12, 22, 12
_LABEL_CHARACTERS, _LABEL_HEIGHT, _LETTER_WIDTH = 30, 15, 7.2
_OTHERS, _OTHERS_COLOUR, _ABSENT_COLOUR = "other clusters", "#8d98a3", "#6f7b87"

# The address of a cluster by its id; None: it is not among the displayed clusters.
AddressOf: TypeAlias = Callable[[str], "str | None"]


@dataclass(frozen=True, slots=True)
class Band:
    """A cluster over the versions; `sizes` has one for each version, 0 if the cluster did not exist."""

    cluster_id: str
    label: str
    sizes: tuple[int, ...]

    @property
    def peak(self) -> int:
        """Return its largest size."""
        return max(self.sizes)

    @property
    def is_alive(self) -> bool:
        """Return whether the newest version has it."""
        return self.sizes[-1] > 0


@dataclass(frozen=True, slots=True)
class River:
    """The bands over the versions from `first` on, the largest first, and how many clusters the last one represents."""

    first: int
    bands: tuple[Band, ...]
    others: int

    @property
    def versions(self) -> int:
        """Return the number of versions."""
        return len(self.bands[0].sizes) if self.bands else 0


def river_of(changes: Sequence[Mapping[str, Any]], now_version: int) -> River:
    """Return the river of changes in the order of versions; a size lasts until the next change of its cluster."""
    if not changes:
        return River(now_version, (), 0)
    first = min(row["cluster_version"] for row in changes)
    sizes: dict[str, list[int]] = {}
    labels: dict[str, str] = {}
    for row in changes:
        name, place = row["cluster_id"], row["cluster_version"] - first
        of_cluster = sizes.setdefault(name, [0] * (now_version - first + 1))
        of_cluster[place:] = [row["size"]] * (len(of_cluster) - place)
        labels[name] = row["label"]
    bands = [Band(name, labels[name], tuple(found)) for name, found in sizes.items()]
    bands.sort(key=lambda band: (-band.peak, band.cluster_id))
    rest = bands[BANDS_MAX:]
    if rest:
        total = tuple(map(sum, zip(*(band.sizes for band in rest), strict=True)))
        bands = [*bands[:BANDS_MAX], Band("", _OTHERS, total)]
    return River(first, tuple(bands), len(rest))


def draw(river: River, shown: int, numbers: Mapping[str, int], address_of: AddressOf) -> str:
    """Return the river as SVG.

    Args:
        river: the bands.
        shown: the version of the page; a line marks it.
        numbers: the places of the clusters of that version, which give them their colours on the map.
        address_of: the link of a band.
    """
    if not river.bands:
        return ""
    totals = [sum(band.sizes[place] for band in river.bands) for place in range(river.versions)]
    unit = (HEIGHT - 2 * _MARGIN - _AXIS) / max(*totals, 1)
    middle = _MARGIN + (HEIGHT - 2 * _MARGIN - _AXIS) / 2
    upper = [middle - total * unit / 2 for total in totals]
    bands, words = [], _Words()
    for band in river.bands:
        lower = [y + size * unit for y, size in zip(upper, band.sizes, strict=True)]
        bands.append(_band(band, upper, lower, numbers, address_of))
        words.add(band.label, upper, lower)
        upper = lower
    label = f"Sizes of the clusters over versions {river.first} to {river.first + river.versions - 1}; listed below"
    return (
        f'<svg class="hw-river" viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="{label}">'
        f"{''.join(bands)}{words.html}{_axis(river)}{_mark(river, shown)}</svg>"
    )


def _xs(versions: int) -> list[float]:
    """Return the place of each version; a single one has a width too."""
    room = WIDTH - 2 * _MARGIN
    return (
        [_MARGIN, WIDTH - _MARGIN] if versions == 1 else [_MARGIN + room * n / (versions - 1) for n in range(versions)]
    )


def _colour(band: Band, numbers: Mapping[str, int]) -> str:
    if not band.cluster_id:
        return _OTHERS_COLOUR
    return colour(numbers[band.cluster_id]) if band.cluster_id in numbers else _ABSENT_COLOUR


def _band(
    band: Band, upper: Sequence[float], lower: Sequence[float], numbers: Mapping[str, int], address_of: AddressOf
) -> str:
    xs = _xs(len(upper))
    if len(upper) == 1:
        upper, lower = [*upper, *upper], [*lower, *lower]
    way = [*zip(xs, upper, strict=True), *reversed(list(zip(xs, lower, strict=True)))]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in way)
    state = "" if band.is_alive else ", ended"
    title = f"{band.label}: {counted(band.sizes[-1], 'insight')} now, {band.peak:,} at most{state}"
    shape = f'<polygon points="{points}" fill="{_colour(band, numbers)}"><title>{escape(title)}</title></polygon>'
    address = address_of(band.cluster_id) if band.cluster_id else None
    return shape if address is None else f'<a href="{escape(address)}" aria-label="{escape(title)}">{shape}</a>'


class _Words:
    """The names of bands, each where its band is thickest; one without room there is left to the list and the tooltip."""

    def __init__(self) -> None:
        self.html = ""
        self._taken: list[tuple[float, float, float, float]] = []

    def add(self, label: str, upper: Sequence[float], lower: Sequence[float]) -> None:
        """Add the name of a band between its edges."""
        place = max(range(len(upper)), key=lambda n: lower[n] - upper[n])
        if lower[place] - upper[place] < _LABEL_HEIGHT:
            return
        words = label if len(label) <= _LABEL_CHARACTERS else label[: _LABEL_CHARACTERS - 1] + "…"
        x, y, width = _xs(len(upper))[place], (upper[place] + lower[place]) / 2 + 4, len(words) * _LETTER_WIDTH
        is_left, is_right = x < WIDTH / 4, x > 3 * WIDTH / 4
        anchor, x, left = (
            ("start", x + 6, x) if is_left else ("end", x - 6, x - width) if is_right else ("middle", x, x - width / 2)
        )
        box = (left, y - _LABEL_HEIGHT, left + width, y)
        if any(box[0] < o[2] and o[0] < box[2] and box[1] < o[3] and o[1] < box[3] for o in self._taken):
            return
        self._taken.append(box)
        where = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"'
        self.html += f'<text class="name" {where} aria-hidden="true">{escape(words)}</text>'


def _mark(river: River, shown: int) -> str:
    place = shown - river.first
    if not 0 <= place < river.versions or river.versions == 1:
        return ""
    x = _xs(river.versions)[place]
    return f'<line class="shown" x1="{x:.1f}" x2="{x:.1f}" y1="{_MARGIN}" y2="{HEIGHT - _AXIS}"/>'


def _axis(river: River) -> str:
    xs = _xs(river.versions)
    step = -(-river.versions // _VERSIONS_LABELLED)
    parts = []
    for place in range(0, river.versions, step):
        anchor = "start" if place == 0 else "end" if place == river.versions - 1 else "middle"
        parts.append(f'<text x="{xs[place]:.0f}" y="{HEIGHT - 6}" text-anchor="{anchor}">v{river.first + place}</text>')
    return f'<g class="axis">{"".join(parts)}</g>'
