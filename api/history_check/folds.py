"""What all checks share: an operation, a violation with the operations that prove it, and the shape of a check.

Invariant: a check is a fold. It sees each event once, in the order of the history, and keeps a bounded record for each
resource, write or ETag; so the time is linear in the length of the history.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from highwater.api.history_check.history import Completion, Invocation, seconds_of

# Of each check; the others are counted. One defect often shows in every later operation.
VIOLATIONS_KEPT = 20
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that was completed, or of which no completion was seen."""

    invocation: Invocation
    completion: Completion | None = None

    def __str__(self) -> str:
        """Describe it for a reader."""
        one, end = self.invocation, self.completion
        ended = "without a completion" if end is None else f"completed at {seconds_of(end.at_ns)}, {_outcome(end)}"
        return f"operation {one.number} ({one.client} at {one.api}, {one.action} {one.resource}, {ended})"

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        one, end = self.invocation, self.completion
        return {
            "number": one.number, "client": one.client, "api": one.api, "action": one.action.value,
            "resource": one.resource, "invoked_ns": one.at_ns,
            "completed_ns": None if end is None else end.at_ns,
            "status": None if end is None else end.status,
            "version": None if end is None else end.version,
            "etag": None if end is None else end.etag,
        }  # fmt: skip


def _outcome(end: Completion) -> str:
    if end.status is None:
        return "not answered"
    return f"status {end.status}" if end.version is None else f"status {end.status}, version {end.version}"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: one sentence, and the operations that prove it."""

    check: str
    sentence: str
    proof: tuple[Operation, ...]

    def __str__(self) -> str:
        """Describe it for a reader."""
        return f"{self.check}: {self.sentence}: {'; '.join(map(str, self.proof))}"

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"check": self.check, "sentence": self.sentence, "proof": [one.as_json() for one in self.proof]}


class Fold:
    """A check. `compared` counts what it has compared, so that a check without a subject is noticed."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self.compared = 0
        self.count = 0
        self.violations: list[Violation] = []

    def invoked(self, invocation: Invocation) -> None:
        """Take the begin of an operation."""

    def completed(self, operation: Operation, end: Completion) -> None:
        """Take its end."""

    def finished(self) -> None:
        """Take the end of the history."""

    def found(self, sentence: str, *proof: Operation, name: str = "") -> None:
        """Note a violation."""
        self.count += 1
        if len(self.violations) < VIOLATIONS_KEPT:
            self.violations.append(Violation(name or self.name, sentence, proof))


def place_of(position: str) -> tuple[Place, int]:
    """Return the partition and the offset of `topic/partition/offset`."""
    topic, partition, offset = position.rsplit("/", 2)
    return (topic, int(partition)), int(offset)


def highest(positions: Iterable[str]) -> dict[Place, int]:
    """Return the highest offset of each partition."""
    found: dict[Place, int] = {}
    for position in positions:
        place, offset = place_of(position)
        found[place] = max(offset, found.get(place, -1))
    return found


def covers(named: dict[Place, int], positions: Iterable[str]) -> bool:
    """Return whether a read that names these offsets must contain the event at one of the positions."""
    return any(named.get(place, -1) >= offset for place, offset in map(place_of, positions))
