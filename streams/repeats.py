"""Whether what comes again under a known id says something else: it changes nothing, so its sender has to be told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Said(NamedTuple):
    """What is said under an id, as a value, and the position of the event that says it."""

    content: object
    position: str


def conflicting(events: Sequence[tuple[str, Said]], stored: Mapping[str, Said]) -> list[int]:
    """The places of those events, in the order of the log, that say something else than the first one of their id.

    Args:
        events: an id each, and what is said under it.
        stored: what is known of these ids; one that is not in it is new with its first event here.
    """
    known = dict(stored)
    places = []
    for place, (name, said) in enumerate(events):
        first = known.setdefault(name, said)
        if first.position != said.position and first.content != said.content:
            places.append(place)
    return places
