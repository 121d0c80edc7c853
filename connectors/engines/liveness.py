"""Who lives: a worker holds an advisory lock as long as its connection does, so that it is known to be gone at once.

Law: one is gone only if it was seen without its lock twice, since one whose connection was cut comes back with it in between.
"""

from __future__ import annotations

from collections.abc import Iterable

from highwater.connectors.engines.statements import QUERIES
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import Connection


class Liveness:
    """That this worker lives, and who of the others does not."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._seen_gone: set[int] = set()

    async def hold(self, connection: Connection) -> None:
        """Take this worker's lock; its own former session may hold it for a moment after a cut connection."""
        await connection.execute(QUERIES["take_worker_lock"], LockClass.WORKER, self._worker)

    async def gone(self, connection: Connection, workers: Iterable[int]) -> list[int]:
        """Those of these workers that have no lock now and had none at the last look."""
        found = {worker for worker in workers if worker != self._worker and await _is_gone(connection, worker)}
        twice, self._seen_gone = found & self._seen_gone, found
        return sorted(twice)


async def _is_gone(connection: Connection, worker: int) -> bool:
    if not await connection.fetchval(QUERIES["try_worker_lock"], LockClass.WORKER, worker):
        return False
    await connection.execute(QUERIES["release_worker_lock"], LockClass.WORKER, worker)
    return True
