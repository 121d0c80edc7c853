"""Whether a repeat of a known id has different content: it changes nothing, so its sender has to be informed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Said(NamedTuple):
    """The content for an id, as a value, and the position of its event."""

    content: object
    position: str


def conflicting(events: Sequence[tuple[str, Said]], stored: Mapping[str, Said]) -> list[int]:
    """Return the indexes of events, in the order of the log, whose content differs from the first one with their id.

    Args:
        events: an id each, and its content.
        stored: what is known of these ids; a missing one is new with its first event here.
    """
    known = dict(stored)
    places = []
    for place, (name, said) in enumerate(events):
        first = known.setdefault(name, said)
        if first.position != said.position and first.content != said.content:
            places.append(place)
    return places
