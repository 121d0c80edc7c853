"""One of several processes of a replay: reads its partitions and sends pieces of the file to its parent.

Invariant: it ends when its parent does, and reports why if it ends before its part is complete.
`connectors.replay.parts` starts it.
"""

from __future__ import annotations

import pickle
import sys
import threading
from contextlib import closing, suppress
from typing import Any, BinaryIO, cast

from highwater.connectors.replay.arrow_alone import without_pandas
from highwater.connectors.replay.consumer import open_reader
from highwater.connectors.replay.counts import Counts
from highwater.connectors.replay.decoding import Decoder
from highwater.connectors.replay.frames import Kind, send
from highwater.connectors.replay.processes import end_with_parent, own_output
from highwater.connectors.replay.reading import read_batches
from highwater.connectors.replay.running import Chooser, write_batches
from highwater.connectors.replay.subject import Subject
from highwater.connectors.replay.task import Task
from highwater.connectors.replay.writers import part_writer
from highwater.schemas.errors import HighwaterError


class _Outbox:
    """A file in memory, emptied frame by frame."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._pieces: list[memoryview] = []
        self.closed = False

    def write(self, data: Any) -> int:
        """Hold a copy until it is sent, since Arrow's CSV writer reuses its memory."""
        piece = memoryview(bytes(data))
        self._pieces.append(piece)
        return piece.nbytes

    def flush(self) -> None:
        """Do nothing: data is sent when a piece is complete."""

    def writable(self) -> bool:
        """Return true."""
        return True

    def send(self, kind: Kind, counts: Counts) -> None:
        """Send the held data."""
        send(self._pipe, kind, self._pieces, counts)
        self._pieces = []


def main() -> None:
    """Run the task that arrives on standard input: a parent starts this process before it knows the task."""
    pipe = own_output()
    counts = Counts()
    with suppress(BrokenPipeError, EOFError):  # the parent has ended, or needs no more
        task = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the parent
        threading.Thread(target=end_with_parent, daemon=True).start()
        try:
            with without_pandas():
                _work(task, pipe, counts)
            send(pipe, Kind.END, [memoryview((counts.first_failure or "").encode())], counts)
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent says it
            told = error if isinstance(error, HighwaterError) else _as_told(error)
            send(pipe, Kind.FAILED, [memoryview(pickle.dumps(told))], counts)


def _as_told(error: Exception) -> HighwaterError:
    return HighwaterError(f"{type(error).__name__}: {error}")


def _work(task: Task, pipe: int, counts: Counts) -> None:
    decoder = Decoder(Subject(task.topic, task.versions, task.schema_registry))
    chooser = Chooser(task.topic.name, decoder, counts, key=task.key, condition=task.condition)
    outbox = _Outbox(pipe)
    writer = part_writer(task.kind, cast("BinaryIO", outbox), decoder)
    outbox.send(Kind.BEGIN, counts)
    with closing(open_reader(task.client)) as reader:
        batches = read_batches(reader, task.topic.name, task.spans)
        write_batches(map(chooser.decoded, batches), writer, counts, lambda _: outbox.send(Kind.PIECE, counts))
    writer.close()
    outbox.send(Kind.PIECE, counts)
