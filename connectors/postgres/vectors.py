"""Vectors of pgvector as their bytes: little-endian float32, as events carry them, in and out.

Invariant: no value is ever written as text or as a list of numbers, which takes fifteen times as long; no bit of a vector
changes. The wire form is that of `vector_send` (pgvector): a big-endian int16 with the length, one that is 0, then big-endian
float32.
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
# A codec is a connection's own; a pool hands out a new proxy of the same connection each time.
_enabled: WeakSet[Any] = WeakSet()


async def enable(tx: Connection) -> None:
    """Have this connection take and give values of type `vector` as bytes; costs a round trip the first time, then nothing."""
    connection = getattr(tx, "_con", tx)
    if connection in _enabled:
        return
    schema = await tx.fetchval(QUERIES["schema_of_vectors"])
    await tx.set_type_codec(_TYPE, schema=schema, encoder=to_wire, decoder=from_wire, format="binary")
    _enabled.add(connection)


def to_wire(vector: bytes) -> bytes:
    """Little-endian float32 as pgvector receives them."""
    return _HEAD.pack(len(vector) // 4, 0) + np.frombuffer(vector, dtype="<f4").byteswap().tobytes()


def from_wire(wire: bytes) -> bytes:
    """What pgvector sends as little-endian float32."""
    return np.frombuffer(wire, dtype="<f4", offset=_HEAD.size).byteswap().tobytes()
