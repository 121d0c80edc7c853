"""Folds a batch of events into a match.

Invariant: events count in the order of the broker's time, and an event without effect is not published.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from highwater.schemas.league import (
    MATCH_FINALIZED,
    MATCH_SCHEDULED,
    MATCH_UPDATED,
    MatchFinalized,
    MatchScheduled,
    MatchUpdated,
)
from highwater.schemas.positions import Cause
from highwater.schemas.topic_names import EventT, TopicName, event_of
from highwater.streams.league.matches import Match, fold_finalized, fold_scheduled, fold_updated

MatchEvent: TypeAlias = MatchScheduled | MatchUpdated | MatchFinalized
# The part of a match that each topic sets, in naming order.
PARTS: Mapping[str, str] = {MATCH_SCHEDULED: "schedule", MATCH_UPDATED: "score", MATCH_FINALIZED: "result"}


class Step(NamedTuple):
    """One event of a match."""

    topic: str
    value: MatchEvent
    cause: Cause

    def of(self, topic: TopicName[EventT]) -> EventT | None:
        """Return the value as an event of a topic; None if it belongs to another one."""
        return event_of(topic, self.topic, self.value)


@dataclass(frozen=True, slots=True)
class Folded:
    """A match after some events: the changed parts, the last event that changed one, and refused events."""

    match: Match | None
    changed: tuple[str, ...] = ()
    cause: Cause | None = None
    refused: tuple[Step, ...] = ()


def fold_match(match: Match | None, steps: Iterable[Step]) -> Folded:
    """Apply the events of one match, oldest first. A match keeps its season: an event that names another is refused.

    Args:
        match: the match as it is stored; None before its first schedule.
        steps: its events, in any order.

    Raises:
        ValueError: an unknown match gets a score or a result; the caller has to check that first.
    """
    changed: set[str] = set()
    refused: list[Step] = []
    cause: Cause | None = None
    for step in sorted(steps, key=lambda step: step.cause.order):
        if match is not None and step.value["season"] != match.season:
            refused.append(step)
            continue
        after = _apply(match, step)
        if after is not match:
            match, cause = after, step.cause
            changed.add(PARTS[step.topic])
    return Folded(match, tuple(part for part in PARTS.values() if part in changed), cause, tuple(refused))


def _apply(match: Match | None, step: Step) -> Match:
    if scheduled := step.of(MATCH_SCHEDULED):
        return fold_scheduled(match, scheduled, step.cause)
    if match is None:
        raise ValueError(f"{step.cause.position} is about a match that was never scheduled")
    if updated := step.of(MATCH_UPDATED):
        return fold_updated(match, updated, step.cause)
    if finalized := step.of(MATCH_FINALIZED):
        return fold_finalized(match, finalized, step.cause)
    raise ValueError(f"{step.topic} is not a topic of matches")


def former_teams(before: Match | None, after: Match) -> list[str]:
    """Return teams that the schedule no longer names: their pages lose the match."""
    if before is None:
        return []
    return [team for team in (before.home, before.away) if team not in (after.home, after.away)]
