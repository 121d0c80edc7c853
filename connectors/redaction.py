"""What takes part when an object is withdrawn (an insight retracted, a chunk deleted): each household registers its step.

Invariant: the steps run in the transaction of the withdrawal and under its lock (`connectors/pages/surrogate_keys.py`), so from
the position of the event on no document, copy or version shows what was withdrawn, and exactly the documents that held it get a
new version.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec


class Withdrawn(NamedTuple):
    """An object that is shown no longer: its place (`surrogate_keys`), its id, what it said, and the position of the event."""

    space: str
    number: int
    object_id: str
    text: str
    caused_by: str


# Given what was withdrawn and the moment in ms since 1970, takes it out of a household's documents.
RedactionStep: TypeAlias = Callable[[Connection, Codec, Sequence[Withdrawn], int], Awaitable[None]]
