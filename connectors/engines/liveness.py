"""Which workers are alive: a worker holds a lease under its number, which ends with its connection at once, or on
timeout if it hangs.

Invariant: a worker counts as gone only if it was seen without its lease twice, since one whose connection was cut
renews it in between. The work of a worker has a lease and an epoch of its own (`slots.py`), so a wrong decision does no
harm.
"""

from __future__ import annotations

from collections.abc import Iterable

from highwater.connectors.postgres import leases
from highwater.connectors.postgres.leases import LeaseKind, Leases
from highwater.connectors.postgres.pool import Connection


class Liveness:
    """Shows that this worker is alive, and which others are not. `seconds`: how long one may hang."""

    def __init__(self, worker: int, *, seconds: float) -> None:
        self._worker = worker
        self._lease = Leases(LeaseKind.WORKER, seconds=seconds)
        self._seen_gone: set[int] = set()

    async def hold(self, connection: Connection) -> None:
        """Take this worker's lease, also from its own former session that the server still has."""
        await leases.drop_ended(connection, LeaseKind.WORKER)
        await self._lease.take(connection, [str(self._worker)])

    async def renew(self, connection: Connection) -> None:
        """Renew the lease if that is due; a worker that hung too long takes its lease again."""
        if await self._lease.renew(connection):
            await self.hold(connection)

    async def gone(self, connection: Connection, workers: Iterable[int]) -> list[int]:
        """Return those of these workers that have no lease now and had none at the last check."""
        living = set(map(int, await leases.live(connection, LeaseKind.WORKER)))
        found = {worker for worker in workers if worker != self._worker and worker not in living}
        twice, self._seen_gone = found & self._seen_gone, found
        return sorted(twice)
