"""Uploads of documents: limited in number, size and time.

Invariant: a client costs a process at most a few MiB of memory and one document of disk, for at most half a minute
longer than its bytes take at `BYTES_PER_SECOND_MIN`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.requests import ClientDisconnect

from highwater.api.core.auth import Principal
from highwater.api.core.errors import BadRequestError
from highwater.api.core.places import Places
from highwater.api.core.protocol import Limits
from highwater.connectors.jobs import blobs
from highwater.connectors.jobs.blobs import Spooled
from highwater.streams.clock import monotonic_seconds

# At once in a process: as many as are read from PostgreSQL at once.
UPLOADS_MAX = 16
# A client that sends nothing for this long has gone, or sends more slowly on average than any line does: its place is needed.
SILENCE_SECONDS_MAX = 30.0
BYTES_PER_SECOND_MIN = Limits().body_bytes_per_second_min


class Uploads:
    """The documents that a process is receiving."""

    def __init__(self, uploads_max: int = UPLOADS_MAX, silence_seconds_max: float = SILENCE_SECONDS_MAX) -> None:
        self._places = Places("documents are being received", uploads_max)
        self._silence_seconds_max = silence_seconds_max

    @asynccontextmanager
    async def spooled(self, request: Request, principal: Principal, bytes_max: int) -> AsyncIterator[Spooled]:
        """Yield the body of a request, once all of it has arrived.

        Raises:
            TooManyRequestsError: the caller or its organization has its share of the documents being received.
            UnavailableError: the maximum number is being received.
            BlobTooLargeError: it is longer than `bytes_max`; the rest is not read.
            BadRequestError: it was interrupted.
        """
        with self._places.taken(principal):
            async with blobs.spooled(self._pieces(request), bytes_max) as found:
                yield found

    async def _pieces(self, request: Request) -> AsyncIterator[bytes]:
        """Yield what arrives. Waiting uses up seconds, bytes give them back; writing to the disk is not the client's time."""
        pieces, seconds = request.stream(), self._silence_seconds_max
        while True:
            began = monotonic_seconds()
            try:
                async with asyncio.timeout(seconds):
                    piece = await anext(pieces, None)
            except ClientDisconnect as error:
                raise BadRequestError("the body was interrupted") from error
            except TimeoutError as error:
                raise BadRequestError(
                    f"the body stopped for {self._silence_seconds_max:g} s, or brought less than {BYTES_PER_SECOND_MIN:,} "
                    "bytes a second"
                ) from error
            if piece is None:
                return
            seconds += began - monotonic_seconds() + len(piece) / BYTES_PER_SECOND_MIN
            seconds = min(seconds, self._silence_seconds_max)
            yield piece
