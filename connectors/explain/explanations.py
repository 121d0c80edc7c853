"""The data of an explanation: a tree of steps, from what is served back to the events that caused it.

Invariants. Every step has its position in the log and the broker's time, or says what is missing and why; a delay is
the difference of two broker times, never between the broker's clock and the product's. No cause is later than its
effect: a step that was only searched for and came too late caused nothing, and its causes take its place; a step that
its effect names but that the broker received later (another relay carried it, another broker's clock stamped it) counts
as known with its effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from highwater.schemas.envelope import iso_or_number
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.positions import Position, parse_position


@dataclass(frozen=True, slots=True)
class Step:
    """One step with its causes, the longest wait first.

    `position` is empty and `at_ms` None if the step is not an event or its event was not found; then `missing` gives
    the reason.
    """

    kind: str
    about: str
    position: str = ""
    at_ms: int | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""
    causes: tuple[Step, ...] = ()
    # Whether it is the first matching event of the log, rather than one that its effect names.
    is_found: bool = False
    # The trace of the event; None if it has none.
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a resource is served as it is, in order of time. `version` 0 and an empty `etag`: nothing was ever stored for it."""

    resource: str
    version: int
    etag: str
    tree: Step

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", in_order(self.tree))

    def document(self, trace_url: str | None = None) -> dict[str, Any]:
        """Return the tree as JSON, and the path from the first event to what is served.

        `trace_url` is the address of a trace's page with `{trace_id}` in it; without one no step links to its trace.
        """
        return {
            "resource": self.resource,
            "version": self.version,
            "etag": self.etag or None,
            "chain": [_document(step, effect, trace_url) for step, effect in chain(self.tree)],
            "tree": _tree(self.tree, None, trace_url),
        }


def chain(tree: Step) -> list[tuple[Step, Step | None]]:
    """Return the path along the first causes, in the order of time, each step with its effect."""
    found: list[tuple[Step, Step | None]] = [(tree, None)]
    while found[-1][0].causes:
        effect = found[-1][0]
        found.append((effect.causes[0], effect))
    return found[::-1]


def in_order(tree: Step) -> Step:
    """Return a tree in which no cause is later than its effect; a step without a time is limited by the next effect
    above that has one.
    """
    (found,) = _fitting(tree, None, is_found=False)
    return found


def _fitting(step: Step, limit_ms: int | None, *, is_found: bool) -> tuple[Step, ...]:
    if step.at_ms is not None and limit_ms is not None and step.at_ms > limit_ms:
        if step.causes and (is_found or step.is_found):
            return tuple(one for cause in step.causes for one in _fitting(cause, limit_ms, is_found=True))
        step = replace(step, at_ms=limit_ms)
    own_ms = limit_ms if step.at_ms is None else step.at_ms
    causes = (one for cause in step.causes for one in _fitting(cause, own_ms, is_found=False))
    return (replace(step, causes=tuple(causes)),)


def delay_ms(step: Step, effect: Step | None) -> int | None:
    """Return milliseconds from a step to its effect; None if one of the times is unknown."""
    if effect is None or step.at_ms is None or effect.at_ms is None:
        return None
    return effect.at_ms - step.at_ms


def with_causes(step: Step, causes: tuple[Step, ...]) -> Step:
    """Return a step with these causes."""
    return replace(step, causes=causes)


def position_of(text: str) -> Position | None:
    """Return the position in a column; None if it has no event, as for the first page of an empty rating."""
    try:
        return parse_position(text)
    except InvalidEventError:
        return None


def with_traces(tree: Step, trace_of: Callable[[Position], str | None]) -> Step:
    """Return a tree with the trace ids of its steps' events."""
    position = position_of(tree.position)
    causes = tuple(with_traces(cause, trace_of) for cause in tree.causes)
    return replace(tree, causes=causes, trace_id=None if position is None else trace_of(position))


def _document(step: Step, effect: Step | None, trace_url: str | None) -> dict[str, Any]:
    return {
        "kind": step.kind,
        "about": step.about,
        "position": step.position or None,
        "at": None if step.at_ms is None else iso_or_number(step.at_ms),
        "delay_ms": delay_ms(step, effect),
        "numbers": dict(step.numbers),
        "missing": step.missing or None,
        "trace_id": step.trace_id,
        "trace_url": _link(step.trace_id, trace_url),
    }


def _link(trace_id: str | None, trace_url: str | None) -> str | None:
    return None if trace_id is None or trace_url is None else trace_url.replace("{trace_id}", trace_id)


def _tree(step: Step, effect: Step | None, trace_url: str | None) -> dict[str, Any]:
    causes = [_tree(cause, step, trace_url) for cause in step.causes]
    return {**_document(step, effect, trace_url), "causes": causes}
