"""The steps when an object is withdrawn (an insight retracted, a chunk deleted): each slice registers its step.

Invariant: the steps run in the transaction of the withdrawal and under its lock (`connectors/pages/surrogate_keys.py`),
so from the position of the event on no document, copy or version shows the withdrawn object, and exactly the documents
that held it get a new version.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec


class Withdrawn(NamedTuple):
    """A withdrawn object: its place (`surrogate_keys`), its id, its text, and the position of the event."""

    space: str
    number: int
    object_id: str
    text: str
    caused_by: str


# Takes withdrawn objects and the time in ms since 1970, and removes them from a slice's documents.
RedactionStep: TypeAlias = Callable[[Connection, Codec, Sequence[Withdrawn], int], Awaitable[None]]
