"""An explanation as a graph: what is served on the left, its causes to the right of it, down to the events. Pure.

Invariants. No two boxes overlap. A graph that would be too large is cut at its ends and shows how many steps are left
out; the list below it has all of them. External text is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, TypeAlias

from highwater.api.dashboard import figures
from highwater.streams.wording import agreed, counted

# The most boxes that a person can survey; the list below the graph has every step.
NODES_MAX = 60
BOX_WIDTH, BOX_HEIGHT = 186, 58
_GAP_X, _GAP_Y, _MARGIN = 66, 12, 10
_ABOUT_CHARACTERS, _ABOUT_LINES = 27, 2

# The page of a step, if it has one.
AddressOf: TypeAlias = Callable[[Mapping[str, Any]], str | None]


@dataclass(slots=True)
class Node:
    """A step with its place: `x` and `y` of the middle of its left side. `left_out`: causes that are not drawn."""

    step: Mapping[str, Any]
    depth: int
    causes: list[Node] = field(default_factory=list)
    left_out: int = 0
    x: float = 0.0
    y: float = 0.0


def nodes_of(tree: Mapping[str, Any], limit: int = NODES_MAX) -> Node:
    """Return the steps to draw, those nearest to what is served first."""
    root = Node(tree, 0)
    waiting, drawn = [root], 1
    while waiting:
        node = waiting.pop(0)
        causes: Sequence[Mapping[str, Any]] = node.step.get("causes", ())
        taken = causes[: limit - drawn]
        node.causes = [Node(cause, node.depth + 1) for cause in taken]
        node.left_out = len(causes) - len(taken)
        drawn += len(taken)
        waiting += node.causes
    return root


def draw(tree: Mapping[str, Any], address_of: AddressOf) -> str:
    """Return the graph of the `tree` of an explanation as SVG; a box whose step has a page links to it."""
    root = nodes_of(tree)
    rows = _place(root, 0)
    nodes = list(_walk(root))
    width = 2 * _MARGIN + BOX_WIDTH + max(node.depth for node in nodes) * (BOX_WIDTH + _GAP_X)
    height = 2 * _MARGIN + rows * (BOX_HEIGHT + _GAP_Y) - _GAP_Y
    lines = "".join(_line(node, cause) for node in nodes for cause in node.causes)
    boxes = "".join(_box(node, address_of(node.step)) for node in nodes)
    label = f"Graph of {counted(len(nodes), 'step')}; the list below has the same {agreed(len(nodes), 'step', 'steps')} as text"
    return (
        f'<svg class="hw-graph" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="group" '
        f'aria-label="{label}">{lines}{boxes}</svg>'
    )


def _place(node: Node, row: int) -> int:
    """Place a node and those below it, from a row on; return the next free row."""
    node.x = _MARGIN + node.depth * (BOX_WIDTH + _GAP_X)
    if not node.causes:
        node.y = _MARGIN + row * (BOX_HEIGHT + _GAP_Y) + BOX_HEIGHT / 2
        return row + 1
    for cause in node.causes:
        row = _place(cause, row)
    # Beside its first cause, which the chain follows: that path is a straight line.
    node.y = node.causes[0].y
    return row


def _walk(node: Node) -> list[Node]:
    return [node, *(found for cause in node.causes for found in _walk(cause))]


def _line(effect: Node, cause: Node) -> str:
    x1, x2 = effect.x + BOX_WIDTH, cause.x
    bend = (x1 + x2) / 2
    path = f"M{x2:.0f},{cause.y:.0f} C{bend:.0f},{cause.y:.0f} {bend:.0f},{effect.y:.0f} {x1 + 7:.0f},{effect.y:.0f}"
    tip = f"M{x1 + 1:.0f},{effect.y:.0f} l7,-4 v8 z"
    delay = cause.step.get("delay_ms")
    words = (
        ""
        if delay is None
        else f'<text x="{x2 - 5:.0f}" y="{cause.y - 5:.0f}" text-anchor="end">{escape(figures.seconds(delay / 1000))}</text>'
    )
    return f'<g class="way"><path class="line" d="{path}"/><path class="tip" d="{tip}"/>{words}</g>'


def _box(node: Node, address: str | None) -> str:
    step = node.step
    top, left = node.y - BOX_HEIGHT / 2, node.x
    about = _cut(str(step["about"]))
    lines = "".join(
        f'<text class="about" x="{left + 9:.0f}" y="{top + 33 + 14 * number:.0f}">{escape(line)}</text>'
        for number, line in enumerate(about)
    )
    kind = f'<text class="kind" x="{left + 9:.0f}" y="{top + 17:.0f}">{escape(step["kind"])}</text>'
    more = (
        f'<text class="more" x="{left + BOX_WIDTH - 9:.0f}" y="{top + 17:.0f}" text-anchor="end">'
        f"{node.left_out} more in the list</text>"
        if node.left_out
        else ""
    )
    parts = (step["about"], step.get("position") or step.get("missing") or "", figures.iso_text(step.get("at")))
    title = f"<title>{escape(' · '.join(str(part) for part in parts if part and part != figures.DASH))}</title>"
    state = " missing" if step.get("missing") else ""
    box = (
        f'<g class="step{state}">{title}<rect x="{left:.0f}" y="{top:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
        f'rx="8"/>{kind}{more}{lines}</g>'
    )
    return box if address is None else f'<a href="{escape(address)}">{box}</a>'


def _cut(about: str) -> list[str]:
    """Return the beginning of a text in as many lines as a box has room for, broken between words if possible."""
    lines: list[str] = []
    rest = " ".join(about.split())
    while rest and len(lines) < _ABOUT_LINES:
        if len(rest) <= _ABOUT_CHARACTERS:
            return [*lines, rest]
        end = rest.rfind(" ", 0, _ABOUT_CHARACTERS + 1)
        end = end if end > _ABOUT_CHARACTERS // 2 else _ABOUT_CHARACTERS
        lines.append(rest[:end])
        rest = rest[end:].lstrip()
    if rest:
        lines[-1] = lines[-1][: _ABOUT_CHARACTERS - 1] + "…"
    return lines
