"""What an explanation is: a tree of steps, from what is served back to the events that made it.

Law: every step names its place in the log and the broker's time there, or says what is missing and why; a delay is counted
between two times of the broker, never between its clock and the product's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.positions import Position, parse_position


@dataclass(frozen=True, slots=True)
class Step:
    """One step, and those that caused it, the one that had waited longest first.

    `position` is empty and `at_ms` None where the step is no event or its event was not found; then `missing` says why.
    """

    kind: str
    about: str
    position: str = ""
    at_ms: int | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""
    causes: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a resource is served as it is. `version` 0 and an empty `etag`: nothing was ever stored for it."""

    resource: str
    version: int
    etag: str
    tree: Step

    def document(self) -> dict[str, Any]:
        """The tree as JSON, and beside it the way from the first event to what is served."""
        return {
            "resource": self.resource,
            "version": self.version,
            "etag": self.etag or None,
            "chain": [_document(step, effect) for step, effect in chain(self.tree)],
            "tree": _tree(self.tree, None),
        }


def chain(tree: Step) -> list[tuple[Step, Step | None]]:
    """The way along the first causes, in the order of time, each step with the one that it led to."""
    found: list[tuple[Step, Step | None]] = [(tree, None)]
    while found[-1][0].causes:
        effect = found[-1][0]
        found.append((effect.causes[0], effect))
    return found[::-1]


def delay_ms(step: Step, effect: Step | None) -> int | None:
    """Milliseconds from a step to its effect; None where one of the times is not known, or the step came too late for it."""
    if effect is None or step.at_ms is None or effect.at_ms is None or effect.at_ms < step.at_ms:
        return None
    return effect.at_ms - step.at_ms


def with_causes(step: Step, causes: tuple[Step, ...]) -> Step:
    """A step with its causes."""
    return replace(step, causes=causes)


def position_of(text: str) -> Position | None:
    """The position in a column; None where no event is behind it, as for the first page of an empty rating."""
    try:
        return parse_position(text)
    except InvalidEventError:
        return None


def _document(step: Step, effect: Step | None) -> dict[str, Any]:
    return {
        "kind": step.kind,
        "about": step.about,
        "position": step.position or None,
        "at": None if step.at_ms is None else iso_from_ms(step.at_ms),
        "delay_ms": delay_ms(step, effect),
        "numbers": dict(step.numbers),
        "missing": step.missing or None,
    }


def _tree(step: Step, effect: Step | None) -> dict[str, Any]:
    return {**_document(step, effect), "causes": [_tree(cause, step) for cause in step.causes]}
