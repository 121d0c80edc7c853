"""Owns what the name of a topic says about its records: events, dead letters, a changelog, or Kafka's own.

Invariant: a pure function of the name; a topic that the catalogue does not have is sorted in the same way.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from highwater.schemas.topics import DEAD_LETTER_SUFFIX

Kind: TypeAlias = Literal["events", "dead letters", "changelog", "internal"]
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
