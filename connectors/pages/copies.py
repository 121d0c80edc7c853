"""Copies of documents in the memory of one process: the first of the two layers of R4.8.

Invariant: a copy is served without a query only after it was verified, that is, after its version was found to be the
current one under the present lease (`connectors/pages/leases.py`). Until then it saves reading a payload, never a
query.
"""

from __future__ import annotations

import gzip
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import brotli

from highwater.connectors.redis.resource_cache import Head

# Season pages, matches in play and a few hundred clubs; a lease queries the versions of all of them at each renewal.
COPIES_MAX = 512
# For all encodings together; the largest page of a season of 380 matches is about 100 KiB in all three.
COPY_BYTES_MAX = 32 << 20
# Pages are compressed once per version and process: brotli 5 and gzip 6 take about 2 ms for a season's schedule.
_BROTLI_QUALITY, _GZIP_LEVEL = 5, 6

IDENTITY, GZIP, BROTLI = "identity", "gzip", "br"


def compress(payload: bytes) -> bytes:
    """Compress with brotli, as documents are stored in Redis."""
    return bytes(brotli.compress(payload, mode=brotli.MODE_TEXT, quality=_BROTLI_QUALITY))


def decompress(payload: bytes) -> bytes | None:
    """Return the bytes of a document stored in Redis; None if it is not brotli."""
    try:
        return bytes(brotli.decompress(payload))
    except brotli.error:
        return None


@dataclass(slots=True)
class Copy:
    """One document; its body in the requested encodings."""

    head: Head
    bodies: dict[str, bytes] = field(default_factory=dict)
    is_verified: bool = False

    @property
    def size(self) -> int:
        """Return the bytes of all bodies."""
        return sum(map(len, self.bodies.values()))

    def body(self, encoding: str) -> bytes | None:
        """Return the body in an encoding, computed at the first request."""
        found = self.bodies.get(encoding)
        identity = self.bodies.get(IDENTITY)
        if found is not None or identity is None:
            return found
        # A fixed time in the gzip header, or equal bytes would differ in each process.
        made = compress(identity) if encoding == BROTLI else gzip.compress(identity, _GZIP_LEVEL, mtime=0)
        self.bodies[encoding] = made
        return made


class Copies:
    """The copies of this process; the least recently used ones are evicted."""

    def __init__(self, *, copies_max: int = COPIES_MAX, bytes_max: int = COPY_BYTES_MAX) -> None:
        self._copies: OrderedDict[str, Copy] = OrderedDict()
        self._copies_max, self._bytes_max = copies_max, bytes_max
        self._size = 0

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def size(self) -> int:
        """Return the bytes of all bodies."""
        return self._size

    def keys(self) -> list[str]:
        """Return the keys of all copies."""
        return list(self._copies)

    def get(self, key: str) -> Copy | None:
        """Return the copy of a document, of any version."""
        copy = self._copies.get(key)
        if copy is not None:
            self._copies.move_to_end(key)
        return copy

    def put(self, key: str, head: Head, payload: bytes | None = None) -> None:
        """Store a version, unless a newer one is stored. A version stays verified when it is stored again."""
        copy = self._copies.get(key)
        if copy is not None and head.version < copy.head.version:
            return
        if copy is None or head.version != copy.head.version or head.etag != copy.head.etag:
            self.drop(key)
            copy = self._copies[key] = Copy(head)
        else:
            copy.head = head
        if payload is not None and IDENTITY not in copy.bodies:
            copy.bodies[IDENTITY] = payload
            self._size += len(payload)
        self._copies.move_to_end(key)
        self._shrink()

    def body(self, key: str, version: int, encoding: str) -> bytes | None:
        """Return the body of exactly this version; None without a copy of it."""
        copy = self._copies.get(key)
        if copy is None or copy.head.version != version:
            return None
        before = copy.size
        found = copy.body(encoding)
        self._size += copy.size - before
        self._shrink()
        return found

    def drop(self, key: str) -> None:
        """Delete a document; an unknown one is not an error."""
        copy = self._copies.pop(key, None)
        if copy is not None:
            self._size -= copy.size

    def verify(self, keys_to_verify: list[str], versions: Mapping[str, int]) -> None:
        """Compare the queried documents with the store: same = verified, newer or gone = dropped.

        A copy newer than the answer was stored during the query, and waits for the next one.
        """
        for key in keys_to_verify:
            copy = self._copies.get(key)
            if copy is None:
                continue
            version = versions.get(key)
            if version is None or version > copy.head.version:
                self.drop(key)
            else:
                copy.is_verified = version == copy.head.version

    def _shrink(self) -> None:
        while len(self._copies) > self._copies_max or (self._size > self._bytes_max and len(self._copies) > 1):
            self.drop(next(iter(self._copies)))
