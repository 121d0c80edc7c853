"""Whether a repeated insight has other content: a known id changes nothing, so the conflict is reported to its producer.

A vector is not compared: the stored vector may have been computed again in another basis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from highwater.schemas.feeds import InsightIngested
from highwater.schemas.positions import Position


class Content(NamedTuple):
    """What an insight says: its channel, its event time in ms since 1970, its URL, and its text by its SHA-256 in hex."""

    channel_id: str
    ts: int
    url: str | None
    text_sha256: str | None


class Stored(NamedTuple):
    """What is known under an id, and the event that said it."""

    content: Content
    position: Position


class Conflict(NamedTuple):
    """An event that says something else under a known id: which event of a batch, the first one, and the fields that differ."""

    place: int
    first: Position
    fields: tuple[str, ...]


def content_of(event: InsightIngested) -> Content:
    """What an event says."""
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
    """The events of a batch, in the order of the log, that say something else than the first one of their id.

    Args:
        events: what is said, and where in the log.
        stored: what is known of the ids of the batch; one that is not in it is new with its first event here. What is stored by
            an event of the batch itself is no repeat.
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
