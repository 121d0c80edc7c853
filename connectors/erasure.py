"""The steps that the erasure of users takes: each slice registers its step, and none knows another's.

The sink of users runs the steps in its transaction, in this order: `lock` of each, then (after users' events can no
longer be stored) `erase` of each, then the resources of each lose their versions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec
from highwater.schemas.positions import Cause


async def _nothing_to_lock(_tx: Connection, _users: Collection[str]) -> None:
    """This slice locks nothing."""


def _no_resources(_user_id: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class ErasureStep:
    """The step of one slice in the erasure of users.

    `erase` gets the users with the events that erase them, and the time in ms since 1970; `lock` takes locks that must
    come before the erasures' own lock; `resources` returns the keys of a user's resources, whose versions end.
    """

    erase: Callable[[Connection, Codec, Mapping[str, Cause], int], Awaitable[None]]
    lock: Callable[[Connection, Collection[str]], Awaitable[None]] = _nothing_to_lock
    resources: Callable[[str], Sequence[str]] = _no_resources
