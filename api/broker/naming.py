"""What the name of a topic says: its subsystem, and whether it holds events, dead letters, a changelog or Kafka's own records.

Invariant: pure functions of names; a topic that the catalogue does not have is sorted in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from highwater.schemas.topic_kinds import Kind, kind_of
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, TOPICS, Topic

__all__ = ["OTHER", "Kind", "catalogued", "grouped", "kind_of", "subsystem_of"]

OTHER = "other"


def catalogued(topic: str) -> Topic | None:
    """The topic of the catalogue that a name, or that of its dead letters, stands for."""
    return TOPICS.get(topic.removesuffix(DEAD_LETTER_SUFFIX))


def subsystem_of(topic: str) -> str:
    """The part of the product that a topic belongs to; one that is not in the catalogue is `OTHER`."""
    return topic.partition(".")[0] if catalogued(topic) is not None else OTHER


def grouped(topics: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Topics by subsystem: the subsystems by name, `OTHER` last."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for one in sorted(topics, key=lambda one: (one["subsystem"] == OTHER, one["subsystem"], one["topic"])):
        found.setdefault(one["subsystem"], []).append(one)
    return found
