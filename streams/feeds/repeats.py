"""Whether a repeated insight has other content: a known id changes nothing, so the conflict is reported to its
producer.

Vectors are not compared: the stored vector may have been recomputed with another embedding model version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from highwater.schemas.feeds import InsightIngested
from highwater.schemas.positions import Position


class Content(NamedTuple):
    """The content of an insight: its channel, its event time in ms since 1970, its URL, and its text by its SHA-256 in hex."""

    channel_id: str
    ts: int
    url: str | None
    text_sha256: str | None


class Stored(NamedTuple):
    """What is stored under an id, and the event that wrote it."""

    content: Content
    position: Position


class Conflict(NamedTuple):
    """An event with different content for a known id: which event of a batch, the first one, and the fields that differ."""

    place: int
    first: Position
    fields: tuple[str, ...]


def content_of(event: InsightIngested) -> Content:
    """Return the content of an event."""
    text = event["text"]
    hashed = None if text is None else sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return Content(event["channel_id"], event["ts"], event["url"], hashed)


def differing(first: Content, repeat: Content) -> tuple[str, ...]:
    """The fields of the event that differ."""
    names = ("channel_id", "ts", "url", "text")
    return tuple(name for name, one, other in zip(names, first, repeat, strict=True) if one != other)


def find_conflicts(
    events: Sequence[tuple[InsightIngested, Position]], stored: Mapping[str, Stored]
) -> tuple[Conflict, ...]:
    """Return the events of a batch, in the order of the log, whose content differs from the first one with their id.

    Args:
        events: the contents, and their positions.
        stored: what is stored of the ids of the batch; a missing one is new with its first event here. What an event of
            the
            batch itself stored is not a repeat.
    """
    known = dict(stored)
    conflicts = []
    for place, (event, position) in enumerate(events):
        said = content_of(event)
        first = known.setdefault(event["insight_id"], Stored(said, position))
        fields = differing(first.content, said) if first.position != position else ()
        if fields:
            conflicts.append(Conflict(place, first.position, fields))
    return tuple(conflicts)
