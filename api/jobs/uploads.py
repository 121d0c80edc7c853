"""Uploads of documents: limited in number, size and silence.

Invariant: a client costs a process at most a few MiB of memory and one document of disk, for at most half a minute
after its last byte.
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
from highwater.connectors.jobs import blobs
from highwater.connectors.jobs.blobs import Spooled

# At once in a process: as many as are read from PostgreSQL at once.
UPLOADS_MAX = 16
# A client that sends nothing for this long has gone; its place is needed.
SILENCE_SECONDS_MAX = 30.0


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
        pieces = request.stream()
        while True:
            try:
                async with asyncio.timeout(self._silence_seconds_max):
                    piece = await anext(pieces, None)
            except ClientDisconnect as error:
                raise BadRequestError("the body was interrupted") from error
            except TimeoutError as error:
                raise BadRequestError(f"no bytes of the body arrived for {self._silence_seconds_max:g} s") from error
            if piece is None:
                return
            yield piece
