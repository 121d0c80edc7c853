"""Checks a history: one pass over its events, in which every check sees each event once.

Invariant: a verdict depends on the events alone. Nothing here reads a clock, a file or the product.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from highwater.api.history_check.folds import Fold, Operation, Violation
from highwater.api.history_check.history import Event, Invocation
from highwater.api.history_check.positions import ContainsItsWrite, InForce
from highwater.api.history_check.stored import DenseOrder, ExactlyOnce, OneRequestPerKey
from highwater.api.history_check.versions import OneTagOneBody, OnlyTheCurrentTag, VersionOrder

CHECKS: tuple[type[Fold], ...] = (
    ExactlyOnce, DenseOrder, OneRequestPerKey, VersionOrder, OneTagOneBody, OnlyTheCurrentTag, ContainsItsWrite, InForce,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checks found: operations by outcome, comparisons by check, and the violations that are kept of `count`."""

    operations: dict[str, int]
    compared: dict[str, int]
    count: int
    violations: tuple[Violation, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "operations": self.operations,
            "compared": self.compared,
            "violations_count": self.count,
            "violations": [violation.as_json() for violation in self.violations],
        }


def check_history(events: Iterable[Event]) -> Verdict:
    """Return the verdict on a history, whose events come in real-time order."""
    folds = [make() for make in CHECKS]
    pending: dict[int, Invocation] = {}
    outcomes = {"answered": 0, "refused": 0, "unanswered": 0}
    for event in events:
        if isinstance(event, Invocation):
            pending[event.number] = event
            for fold in folds:
                fold.invoked(event)
            continue
        operation = Operation(pending.pop(event.number), event)
        outcomes[_outcome(event.status)] += 1
        for fold in folds:
            fold.completed(operation, event)
    for fold in folds:
        fold.finished()
    outcomes["unanswered"] += len(pending)
    return Verdict(
        outcomes,
        {fold.name: fold.compared for fold in folds},
        sum(fold.count for fold in folds),
        tuple(violation for fold in folds for violation in fold.violations),
    )


def _outcome(status: int | None) -> str:
    if status is None:
        return "unanswered"
    return "refused" if status == 429 or status >= 500 else "answered"
