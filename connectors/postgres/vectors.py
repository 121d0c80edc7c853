"""pgvector's vectors as bytes: little-endian float32, as events carry them, in both directions.

Invariant: no value is ever converted to text or a list of numbers, which takes fifteen times as long; no bit of a
vector changes. The wire form is that of `vector_send` (pgvector): a big-endian int16 with the length, a zero int16,
then big-endian float32.
"""

from __future__ import annotations

import struct
from typing import Any
from weakref import WeakSet

import numpy as np

from highwater.connectors.postgres.pool import Connection
from highwater.connectors.postgres.statements import QUERIES

_HEAD = struct.Struct(">hh")
_TYPE = "vector"
# A codec belongs to a connection; a pool returns a new proxy of the same connection each time.
_enabled: WeakSet[Any] = WeakSet()


async def enable(tx: Connection) -> None:
    """Make this connection accept and return values of type `vector` as bytes; one round trip the first time, then free."""
    connection = getattr(tx, "_con", tx)
    if connection in _enabled:
        return
    schema = await tx.fetchval(QUERIES["schema_of_vectors"])
    await tx.set_type_codec(_TYPE, schema=schema, encoder=to_wire, decoder=from_wire, format="binary")
    _enabled.add(connection)


def to_wire(vector: bytes) -> bytes:
    """Convert little-endian float32 to pgvector's wire form."""
    return _HEAD.pack(len(vector) // 4, 0) + np.frombuffer(vector, dtype="<f4").byteswap().tobytes()


def from_wire(wire: bytes) -> bytes:
    """Convert pgvector's wire form to little-endian float32."""
    return np.frombuffer(wire, dtype="<f4", offset=_HEAD.size).byteswap().tobytes()
