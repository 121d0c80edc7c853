"""The task of one process of a replay; separate from its execution, which the parent does not load."""

from __future__ import annotations

from dataclasses import dataclass

from highwater.connectors.replay.shares import Share
from highwater.schemas.topics import Topic
from highwater.streams.access import RegistryAccess


@dataclass(frozen=True, slots=True)
class Task:
    """The task of one process. `versions` are the schemas of the topic by id, `key` and `condition` the filter."""

    client: dict[str, str]
    schema_registry: RegistryAccess | None
    topic: Topic
    versions: dict[int, str]
    spans: dict[int, Share]
    key: bytes | None
    condition: str | None
    kind: str
