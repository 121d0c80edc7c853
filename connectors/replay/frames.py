"""Defines what a process of a replay sends to its parent: pieces of the file, with its progress.

Invariant: a piece is whole records, so that pieces of several processes may follow each other in any order.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO

from highwater.connectors.replay.counts import Counts

# Kind; number of bytes that follow; records read, written, undecodable and unanswered so far.
_HEADER = struct.Struct("<BQQQQQ")
# Bytes in memory while a piece is copied.
_COPIED_BYTES = 1 << 20


class Kind(IntEnum):
    """The kind of data after a header."""

    BEGIN = 1  # the beginning of the file, the same from every process
    PIECE = 2
    END = 3  # why the first record had no result of the condition
    FAILED = 4  # a pickled exception


class LostError(Exception):
    """The other process ended in the middle of a message."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A received header; its bytes are still in the pipe."""

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
        LostError: the pipe has ended.
    """
    kind, size, *numbers = _HEADER.unpack(b"".join(chunks(pipe, _HEADER.size)))
    return Frame(Kind(kind), size, Counts(*numbers))


def chunks(pipe: int, size: int) -> Iterator[bytes]:
    """Yield this many bytes, some at a time.

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
    """Concatenates the pieces of several processes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def begin(self, start: bytes) -> None:
        """Write the beginning of the file."""
        self._file.write(start)

    def add(self, piece: Iterator[bytes]) -> None:
        """Append a piece."""
        for chunk in piece:
            self._file.write(chunk)

    def close(self) -> None:
        """Do nothing."""

    def abandon(self) -> None:
        """Do nothing."""
