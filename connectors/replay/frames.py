"""Owns what a process of a replay sends to its parent: pieces of the file, with how far it is.

Law: a piece is whole records, so that those of several processes may follow each other in any order.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO

from highwater.connectors.replay.counts import Counts

# Kind; bytes that follow; records read, written, undecodable and without an answer so far.
_HEADER = struct.Struct("<BQQQQQ")
# So much is in hand while a piece is copied.
_COPIED_BYTES = 1 << 20


class Kind(IntEnum):
    """What follows a header."""

    BEGIN = 1  # what the file begins with, the same from every process
    PIECE = 2
    END = 3  # the first record's reason that had no answer to the condition
    FAILED = 4  # a pickled exception


class LostError(Exception):
    """The other process ended in the middle of a message."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A header that was read; its bytes are still in the pipe."""

    kind: Kind
    size: int
    counts: Counts


def send(pipe: int, kind: Kind, pieces: list[memoryview], counts: Counts) -> None:
    """Write a frame."""
    size = sum(piece.nbytes for piece in pieces)
    header = _HEADER.pack(kind, size, counts.read, counts.written, counts.undecodable, counts.unanswered)
    for piece in (memoryview(header), *pieces):
        rest = piece.cast("B")
        while rest:
            rest = rest[os.write(pipe, rest) :]


def receive(pipe: int) -> Frame:
    """Read a header.

    Raises:
        LostError: there is none.
    """
    kind, size, *numbers = _HEADER.unpack(b"".join(chunks(pipe, _HEADER.size)))
    return Frame(Kind(kind), size, Counts(*numbers))


def chunks(pipe: int, size: int) -> Iterator[bytes]:
    """So many bytes, some at a time.

    Raises:
        LostError: there are fewer.
    """
    while size > 0:
        chunk = os.read(pipe, min(size, _COPIED_BYTES))
        if not chunk:
            raise LostError
        size -= len(chunk)
        yield chunk


class Pieces:
    """The lines of several processes, one piece after the other."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def begin(self, start: bytes) -> None:
        """What the file begins with."""
        self._file.write(start)

    def add(self, piece: Iterator[bytes]) -> None:
        """Append a piece."""
        for chunk in piece:
            self._file.write(chunk)

    def close(self) -> None:
        """Nothing is held."""

    def abandon(self) -> None:
        """Nothing is held."""
