"""Which embedding model version (basis) new vectors use, and the built-in embedders.

Invariant: what is stored under the shared lock uses the version that is active at the commit, and the next one if there
is one; a switch holds the lock alone, so no insight falls between two versions.
"""

from __future__ import annotations

from dataclasses import dataclass

from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.models.local_model import is_local_basis
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import Connection, one_row
from highwater.streams.feeds.basis import Basis
from highwater.streams.feeds.embedding import TextEmbedder

# Second number of `LockClass.BASIS`.
LOCK_ACTIVE = 0


@dataclass(frozen=True, slots=True)
class ActiveBasis:
    """The ids of the active version and of the one that is rolled out, if any."""

    basis_id: str
    next_id: str | None


def preferred_basis(active: ActiveBasis) -> str:
    """Return the version for comparisons in which all insights have a vector: a local model's, else the active one."""
    return active.next_id if active.next_id is not None and is_local_basis(active.next_id) else active.basis_id


async def read_active(tx: Connection) -> ActiveBasis:
    """Return the current state."""
    row = await one_row(tx, QUERIES["read_active_basis"])
    return ActiveBasis(row["basis_id"], row["next_id"])


async def share_active(tx: Connection) -> ActiveBasis:
    """Return the current state and keep it unchanged until the transaction ends."""
    await tx.execute(QUERIES["share_active_basis"], LockClass.BASIS, LOCK_ACTIVE)
    return await read_active(tx)  # a separate statement: it sees what was committed while it waited


async def hold_active(tx: Connection) -> ActiveBasis:
    """Return the current state; no insight can be stored until the transaction ends."""
    await tx.execute(QUERIES["hold_active_basis"], LockClass.BASIS, LOCK_ACTIVE)
    return await read_active(tx)


class Embedders:
    """The built-in embedders of the versions in use, read once; calls may overlap."""

    def __init__(self) -> None:
        self._made: dict[str, TextEmbedder | None] = {}

    async def of(self, tx: Connection, active: ActiveBasis) -> dict[str, TextEmbedder | None]:
        """Return the embedders of the active and the next version by id; None where a service computes the vectors."""
        wanted = [basis_id for basis_id in (active.basis_id, active.next_id) if basis_id is not None]
        made = {basis_id: self._made[basis_id] for basis_id in wanted if basis_id in self._made}
        for basis_id in wanted:
            if basis_id not in made:
                row = await one_row(tx, QUERIES["read_basis"], basis_id)
                is_remote = row["kind"] == "remote"
                made[basis_id] = None if is_remote else TextEmbedder(Basis.from_bytes(row["content"], basis_id))
        self._made = made
        return made
