"""The step of feeds in an erasure of users: high-water marks, demands, curations, clusters with their history, and the
feed's document.

Invariant: it runs alone (`connectors/identity/erasures.py`). Channels and insights stay: they name no user.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from highwater.connectors.erasure import ErasureStep
from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.pages import surrogate_keys
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec
from highwater.schemas.positions import Cause

_ERASED = (
    QUERIES["erase_hwm"], QUERIES["erase_marks"], QUERIES["erase_demands"], QUERIES["erase_clusters"],
    QUERIES["erase_history"], QUERIES["erase_feed"], QUERIES["erase_curations"],
)  # fmt: skip


def resources_of_user(user_id: str) -> Sequence[str]:
    """Return the keys of a user's resources."""
    return (f"feed:{user_id}", f"clusters:{user_id}")


async def erase_from_feeds(tx: Connection, _codec: Codec, erased: Mapping[str, Cause], _now_ms: int) -> None:
    """Erase users in the transaction of their erasures; the sink of users publishes the erasure."""
    for user_id in erased:
        for statement in _ERASED:
            await tx.execute(statement, user_id)
        await surrogate_keys.untag(tx, resources_of_user(user_id))


async def _lock(tx: Connection, _users: Collection[str]) -> None:
    await surrogate_keys.share(tx)


ERASURE = ErasureStep(erase_from_feeds, lock=_lock, resources=resources_of_user)
