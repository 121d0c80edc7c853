"""The flow of data as a picture: processes as boxes, topics as lines between them, drawn from the catalogue.

Invariants. Every topic of the catalogue is in the picture. A rate is shown once: if several processes write one topic,
the line from the first of them has it, the others are drawn without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from highwater.api.dashboard.addresses import group_address, topic_address
from highwater.api.dashboard.figures import rate, seconds, short_count
from highwater.schemas.topics import TOPICS, Topic

_NAMES = {
    "feeds": "Feeds",
    "league": "Leagues",
    "queries": "Queries",
    "jobs": "Jobs",
    "chunks": "Chunks",
    "cache": "Cache and clock",
}
OUTSIDE, OUTBOX, WORKER = "outside", "outbox", "worker"
_SHOWN = {OUTSIDE: "API, producers", WORKER: "decisions", OUTBOX: "outbox"}
# Readers in the catalogue that are not processes.
_PEOPLE = frozenset({"operator"})

_COLUMN_X = {0: 8, 1: 250, 2: 440, 3: 690, 4: 1040}
_BOX_WIDTH, _BOX_HEIGHT, _ROW = 128, 40, 68
_WIDTH = _COLUMN_X[4] + _BOX_WIDTH + 10
# The approximate size of labels on lines.
_LETTER_WIDTH = 6.2
# Longer lines pass a column.
_FAR = 400

_Curve: TypeAlias = tuple[tuple[float, float], tuple[float, float], tuple[float, float], tuple[float, float]]

# A process this far behind is marked; a batch takes well under a second, and the decisions commit every few.
LATE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Edge:
    """The flow from one process to another. `bears_rate`: the line with the rate; a line without topics is a store."""

    source: str
    target: str
    topics: tuple[str, ...]
    bears_rate: bool = True


@dataclass(frozen=True, slots=True)
class Lane:
    """The processes and topics of one subsystem; `columns` contains the processes from left to right."""

    name: str
    title: str
    columns: tuple[tuple[str, ...], ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Behind:
    """How far a process is behind."""

    events: int
    seconds: float | None


def lane_of(topic: str) -> str:
    """Return the lane in which a topic is drawn."""
    subsystem = topic.split(".", 1)[0]
    return "cache" if subsystem in ("streams", "security") else subsystem


def lanes(topics: Sequence[Topic] = tuple(TOPICS.values())) -> tuple[Lane, ...]:
    """Return the lanes of a catalogue, in its order."""
    grouped: dict[str, list[Topic]] = {}
    for topic in topics:
        grouped.setdefault(lane_of(topic.name), []).append(topic)
    return tuple(_lane(name, found) for name, found in grouped.items())


def _lane(name: str, topics: Sequence[Topic]) -> Lane:
    flows: dict[tuple[str, str, bool], list[str]] = {}
    for topic in topics:
        producers = list(dict.fromkeys(OUTSIDE if one in ("api", "outside") else one for one in topic.producers))
        for consumer in (one for one in topic.consumers if one not in _PEOPLE):
            for number, producer in enumerate(producers):
                if producer != consumer:
                    flows.setdefault((producer, consumer, number == 0), []).append(topic.name)
    edges = [Edge(source, target, tuple(names), bears) for (source, target, bears), names in flows.items()]
    columns = _columns(edges)
    if OUTBOX in columns[2]:
        edges += [Edge(sink, OUTBOX, ()) for sink in columns[1]]
    return Lane(name, _NAMES.get(name, name), columns, tuple(edges))


def _columns(edges: Sequence[Edge]) -> tuple[tuple[str, ...], ...]:
    """Return producers, their sinks, the outbox, the decisions, and the processes that act on them."""
    named = list(dict.fromkeys(name for edge in edges for name in (edge.source, edge.target)))
    from_outside = {edge.target for edge in edges if edge.source == OUTSIDE and edge.bears_rate}
    commanded = {edge.target for edge in edges if edge.source == WORKER}
    columns: list[list[str]] = [[], [], [], [], []]
    for name in named:
        if name in (OUTSIDE, OUTBOX, WORKER):
            columns[{OUTSIDE: 0, OUTBOX: 2, WORKER: 3}[name]].append(name)
        else:
            columns[1 if name in from_outside and name not in commanded else 4].append(name)
    # Processes commanded by the decisions are beside them, followers of the outbox below: so the fewest lines cross.
    followed = Counter(edge.target for edge in edges if edge.source == OUTBOX for _ in edge.topics)
    columns[4].sort(key=lambda name: (followed[name], name not in commanded))
    return tuple(tuple(column) for column in columns)


def draw(lane: Lane, rates: Mapping[str, float] | None, behind: Mapping[str, Behind]) -> str:
    """Return a lane as SVG; `rates` None: nothing was sampled yet."""
    rows = max(len(column) for column in lane.columns)
    # The line from the outbox past the decisions needs a row of its own below them.
    height = max(rows, 2) * _ROW + 20
    places = _places(lane, height)
    drawn = [_edge(edge, places, rates) for edge in lane.edges]
    # Labels last, so that no line crosses them.
    lines = "".join(line for line, _ in drawn) + "".join(words for _, words in drawn)
    boxes = "".join(_box(name, place, behind.get(name)) for name, place in places.items())
    label = f"Flow of {escape(lane.title)}"
    return (
        f'<svg class="hw-flow" viewBox="0 0 {_WIDTH} {height}" role="group" aria-label="{label}">{lines}{boxes}</svg>'
    )


def _places(lane: Lane, height: int) -> dict[str, tuple[float, float]]:
    """Return the middle of the left side of each box."""
    places = {}
    for number, column in enumerate(lane.columns):
        room = height / max(1, len(column))
        for row, name in enumerate(column):
            middle = room * (row + 0.5)
            if len(column) == 1 and number in (2, 3) and any(len(one) > 1 for one in lane.columns):
                # Decisions above, outbox below the middle: this separates the lines between them from those past them.
                middle = height * (0.32 if number == 3 else 0.6)
            places[name] = (float(_COLUMN_X[number]), middle)
    return places


def _box(name: str, place: tuple[float, float], behind: Behind | None) -> str:
    x, y = place
    told, is_late = "", False
    if behind is not None:
        is_late = behind.events > 0 and (behind.seconds or 0.0) >= LATE_SECONDS
        told = f"{short_count(behind.events)} to read" if behind.events else "up to date"
        if is_late:
            told = f"{short_count(behind.events)} to read, {seconds(behind.seconds)}"
    shift = -3 if told else 5
    second = f'<text class="sub" x="{x + 10}" y="{y + 13:.0f}">{escape(told)}</text>' if told else ""
    box = (
        f'<g class="hw-node{" behind" if is_late else ""}"><rect x="{x}" y="{y - _BOX_HEIGHT / 2:.0f}" width="{_BOX_WIDTH}" '
        f'height="{_BOX_HEIGHT}" rx="8"/><text x="{x + 10}" y="{y + shift:.0f}">{escape(_SHOWN.get(name, name))}</text>'
        f"{second}</g>"
    )
    return box if behind is None else _linked(group_address(name), box)


def _linked(address: str, drawn: str) -> str:
    return f'<a href="{escape(address)}">{drawn}</a>'


def _edge(edge: Edge, places: Mapping[str, tuple[float, float]], rates: Mapping[str, float] | None) -> tuple[str, str]:
    """Return the line of an edge, and its label."""
    (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
    per_second = sum((rates or {}).get(topic, 0.0) for topic in edge.topics)
    curve = _curve(x1, y1, x2, y2)
    path = "M{:.0f},{:.0f} C{:.0f},{:.0f} {:.0f},{:.0f} {:.0f},{:.0f}".format(*(c for point in curve for c in point))
    if not edge.topics:
        return f'<g class="hw-edge stored"><path class="line" d="{path}"/></g>', ""
    # Lines that leave the same box have their labels near their ends, those that pass another box even later.
    at = _along(curve, _place_of_words(x1, x2, is_lowest=y2 >= max(y for x, y in places.values() if x == x2)))
    is_on = per_second > 0 and edge.bears_rate
    moving = f'<path class="move" d="{path}" stroke-width="1.5"/>' if is_on else ""
    width = f' style="stroke-width:{min(5.0, 1.5 + per_second**0.25):.1f}"' if is_on else ""
    state = " on" if is_on else ""
    title = f"<title>{escape(', '.join(edge.topics))}</title>"
    line = f'<g class="hw-edge{state}">{title}<path class="line" d="{path}"{width}/>{moving}</g>'
    return line, f'<g class="hw-edge{state}">{_words(edge, at, per_second, has_rates=rates is not None)}</g>'


def _curve(x1: float, y1: float, x2: float, y2: float) -> _Curve:
    """Return a line from the right of one box to the left of another.

    Lines from the outbox pass below the decisions. Lines from outside pass above the sinks to the decisions, and below
    the outbox to the processes that act. Lines that go back leave their box at the bottom.
    """
    if x2 < x1:
        end = x2 + _BOX_WIDTH
        return (x1, y1 + 12), (x1 - 110, y1 + 40), (end + 60, y2 + 40), (end, y2 + 12)
    start = x1 + _BOX_WIDTH
    if x1 == _COLUMN_X[0] and x2 == _COLUMN_X[3]:
        return (start, y1 - 8), (start + 164, y1 - 92), (x2 - 160, y2 - 42), (x2, y2 - 8)
    if x1 == _COLUMN_X[0] and x2 - x1 > _FAR:
        return (start, y1 + 8), (start + 260, y1 + 116), (x2 - 160, y2 + 48), (x2, y2 + 8)
    if x2 - x1 > _FAR:
        return (start, y1 + 8), (start + 260, y1 + 70), (x2 - 160, y2 + 14), (x2, y2 + 8)
    bend = (x2 - start) / 2
    return (start, y1), (start + bend, y1), (x2 - bend, y2), (x2, y2)


def _place_of_words(x1: float, x2: float, *, is_lowest: bool) -> float:
    """Return where the label of a line is, so that labels of meeting lines do not overlap."""
    if x2 < x1:
        return 0.15
    if x1 == _COLUMN_X[0] and x2 - x1 > _FAR:
        return 0.5 if x2 == _COLUMN_X[3] else 0.3
    if x2 - x1 > _FAR:
        return 0.82 if is_lowest else 0.5
    return 0.6


def _along(curve: _Curve, t: float) -> tuple[float, float]:
    """Return the point of a cubic Bézier curve at `t`, from 0 to 1."""
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
    x, y = (sum(w * point[axis] for w, point in zip(weights, curve, strict=True)) for axis in (0, 1))
    return x, y


def _words(edge: Edge, at: tuple[float, float], per_second: float, *, has_rates: bool) -> str:
    if not edge.bears_rate:
        return ""
    x, y = at
    name = edge.topics[0].split(".", 1)[1] if len(edge.topics) == 1 else f"{len(edge.topics)} topics"
    told = f'<text class="rate" x="{x:.0f}" y="{y + 9:.0f}" text-anchor="middle">{rate(per_second)}</text>'
    # A background of their own: a thick line through a number would change how it looks.
    width = max(len(name), len(rate(per_second))) * _LETTER_WIDTH
    ground = f'<rect x="{x - width / 2:.0f}" y="{y - 14:.0f}" width="{width:.0f}" height="{26 if has_rates else 13}" rx="4"/>'
    words = f'<text x="{x:.0f}" y="{y - 4:.0f}" text-anchor="middle">{escape(name)}</text>'
    drawn = ground + words + (told if has_rates else "")
    return _linked(topic_address(edge.topics[0]) if len(edge.topics) == 1 else "/topics", drawn)
