"""A replay by several processes: starts them, combines their pieces into one file, and ends them.

Invariant: the file is complete only when every process has reported its part as complete; none of them outlives the
replay.
"""

from __future__ import annotations

import pickle
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, BinaryIO, Protocol, cast

from highwater.connectors.replay.arrow_alone import without_pandas
from highwater.connectors.replay.counts import Counts
from highwater.connectors.replay.frames import Frame, Kind, LostError, Pieces, chunks, receive
from highwater.connectors.replay.processes import hand_over, started
from highwater.connectors.replay.task import Task
from highwater.schemas.errors import HighwaterError

_PROGRAM = "from highwater.connectors.replay.part import main; main()"


class PartLostError(HighwaterError):
    """A process of the replay ended before its share was complete. Start the replay again."""


def write_in_parts(
    kind: str,
    count: int,
    tasks: Callable[[], Sequence[Task]],
    file: BinaryIO,
    counts: Counts,
    on_progress: Callable[[int], None],
) -> None:
    """Write what `count` tasks find, each in its own process; `tasks` is called while the processes start.

    `kind` is the format, `on_progress` gets the number of records read.

    Raises:
        HighwaterError: one of them has reported an error.
        PartLostError: one has ended without a report.
        OSError: the file cannot be written.
    """
    with ExitStack() as stack, selectors.DefaultSelector() as pipes:
        processes = [stack.enter_context(started(_PROGRAM)) for _ in range(count)]
        target = stack.enter_context(_target(kind, file))  # while they start
        for process, task in zip(processes, tasks(), strict=True):
            hand_over(task, process)
            pipes.register(cast("IO[bytes]", process.stdout), selectors.EVENT_READ, _Part(process))
        parts: list[_Part] = [key.data for key in pipes.get_map().values()]
        has_begun = False
        while pipes.get_map():
            for key, _ in pipes.select():
                frame = key.data.next()
                if key.data.is_done:
                    pipes.unregister(key.fileobj)
                elif frame.kind == Kind.PIECE and frame.size:
                    target.add(key.data.bytes(frame))
                else:
                    start = b"".join(key.data.bytes(frame))
                    if frame.kind == Kind.BEGIN and not has_begun:
                        target.begin(start)
                        has_begun = True
                counts.become_sum_of(part.counts for part in parts)
                on_progress(counts.read)


class _Target(Protocol):
    """The combined file."""

    def begin(self, start: bytes) -> None:
        """Write the beginning, from the first process."""

    def add(self, piece: Iterator[bytes]) -> None:
        """Append a piece."""

    def close(self) -> None:
        """Write held data and the file's end."""

    def abandon(self) -> None:
        """Stop writing."""


@contextmanager
def _target(kind: str, file: BinaryIO) -> Iterator[_Target]:
    """Yield the file, closed when the block succeeds and abandoned otherwise."""
    with ExitStack() as stack:
        target: _Target
        if kind == "parquet":
            # Only this format makes its owner load Arrow.
            from highwater.connectors.replay.row_groups import ParquetOfPieces  # noqa: PLC0415

            stack.enter_context(without_pandas())
            target = ParquetOfPieces(file)
        else:
            target = Pieces(file)
        try:
            yield target
            target.close()
        except BaseException:
            target.abandon()
            raise


class _Part:
    """The output of one process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._pipe = cast("IO[bytes]", process.stdout).fileno()
        self.counts = Counts()
        self.is_done = False

    def next(self) -> Frame:
        """Return the next frame; its bytes must be read, except for the last one.

        Raises:
            HighwaterError: the process has reported an error.
            PartLostError: it has ended without a report.
        """
        try:
            frame = receive(self._pipe)
        except LostError:
            raise self._lost() from None
        self.counts = frame.counts
        if frame.kind == Kind.FAILED:
            raise pickle.loads(b"".join(self.bytes(frame)))  # noqa: S301 - from our own process
        if frame.kind == Kind.END:
            self.is_done = True
            self.counts.first_failure = b"".join(self.bytes(frame)).decode() or None
        return frame

    def bytes(self, frame: Frame) -> Iterator[bytes]:
        """Yield the bytes after the header.

        Raises:
            PartLostError: the process ended in between.
        """
        try:
            yield from chunks(self._pipe, frame.size)
        except LostError:
            raise self._lost() from None

    def _lost(self) -> PartLostError:
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit {code}"
        return PartLostError(f"a process of the replay ended before its part was whole ({how})")
