"""Classifies topics by name: the subsystem, and whether a topic holds events, dead letters, a changelog or Kafka's own
records.

Invariant: pure functions of names; topics outside the catalogue are classified in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from highwater.schemas.topics import DEAD_LETTER_SUFFIX, TOPICS, Topic

Kind: TypeAlias = Literal["events", "dead letters", "changelog", "internal"]
OTHER = "other"
_CHANGELOG_SUFFIX = "-changelog"
# As Kafka and Faust (`<app>-__assignor-__leader`) begin the names of what is theirs.
_INTERNAL = "__"


def kind_of(topic: str) -> Kind:
    """What a topic holds."""
    if topic.startswith(_INTERNAL) or f"-{_INTERNAL}" in topic:
        return "internal"
    if topic.endswith(_CHANGELOG_SUFFIX):
        return "changelog"
    return "dead letters" if topic.endswith(DEAD_LETTER_SUFFIX) else "events"


def catalogued(topic: str) -> Topic | None:
    """Return the catalogued topic with this name, or the one whose dead-letter topic has it."""
    return TOPICS.get(topic.removesuffix(DEAD_LETTER_SUFFIX))


def subsystem_of(topic: str) -> str:
    """Return the subsystem of a topic; `OTHER` for a topic outside the catalogue."""
    return topic.partition(".")[0] if catalogued(topic) is not None else OTHER


def grouped(topics: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Group topics by subsystem, sorted by name, `OTHER` last."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for one in sorted(topics, key=lambda one: (one["subsystem"] == OTHER, one["subsystem"], one["topic"])):
        found.setdefault(one["subsystem"], []).append(one)
    return found
