"""What takes part in the erasure of users: each household registers its step, and nobody knows another's.

The sink of users runs the steps in its transaction, in this order: `lock` of each, then (nobody stores what users said any more)
`erase` of each, then the resources of each lose their versions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec
from highwater.schemas.positions import Cause


async def _nothing_to_lock(_tx: Connection, _users: Collection[str]) -> None:
    """Nothing of this household is locked before."""


def _no_resources(_user_id: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class ErasureStep:
    """What the erasure of users takes from one household.

    `erase` is given the users with the events that erase them, and the moment in ms since 1970; `lock` is for what must be
    locked before the erasures' own lock; `resources` names the keys of what is served of a user, whose versions end.
    """

    erase: Callable[[Connection, Codec, Mapping[str, Cause], int], Awaitable[None]]
    lock: Callable[[Connection, Collection[str]], Awaitable[None]] = _nothing_to_lock
    resources: Callable[[str], Sequence[str]] = _no_resources
