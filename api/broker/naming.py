"""Classifies topics by name: the subsystem, and whether a topic holds events, dead letters, a changelog or Kafka's own
records.

Invariant: pure functions of names; topics outside the catalogue are classified in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from highwater.schemas.topic_kinds import Kind, kind_of
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, TOPICS, Topic

__all__ = ["OTHER", "Kind", "catalogued", "grouped", "kind_of", "subsystem_of"]

OTHER = "other"


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
