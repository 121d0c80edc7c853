"""Owns a replay by several processes: starts them, puts the pieces that they send into one file, and ends them.

Law: the file is whole only when every process has said that its part is; whatever happens, none of them stays.
"""

from __future__ import annotations

import pickle
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, BinaryIO, Protocol, cast

from highwater.connectors.replay.arrow_alone import without_pandas
from highwater.connectors.replay.counts import Counts
from highwater.connectors.replay.frames import Frame, Kind, LostError, Pieces, chunks, receive
from highwater.connectors.replay.processes import command, environment
from highwater.connectors.replay.task import Task
from highwater.schemas.errors import HighwaterError

_PROGRAM = "from highwater.connectors.replay.part import main; main()"
# A piece is larger than what a pipe holds by itself, 64 KiB; a process that waits for its parent reads nothing.
_PIPE_BYTES = 1 << 20


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
    """Write what `count` tasks find, each in a process of its own; `tasks` is asked for them while the processes start.

    `kind` is the format, `on_progress` is told how many records were read.

    Raises:
        HighwaterError: one of them has failed, as it says.
        PartLostError: one has ended without a word.
        OSError: the file cannot be written.
    """
    with ExitStack() as stack, selectors.DefaultSelector() as pipes:
        processes = [stack.enter_context(_process()) for _ in range(count)]
        target = stack.enter_context(_target(kind, file))  # while they start
        for process, task in zip(processes, tasks(), strict=True):
            _hand_over(task, process)
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
    """The file that is put together."""

    def begin(self, start: bytes) -> None:
        """What the first process begins with."""

    def add(self, piece: Iterator[bytes]) -> None:
        """Append a piece."""

    def close(self) -> None:
        """Write what is held, and the file's end."""

    def abandon(self) -> None:
        """Write no more."""


@contextmanager
def _target(kind: str, file: BinaryIO) -> Iterator[_Target]:
    """The file, closed when the block ends well and abandoned when it does not."""
    with ExitStack() as stack:
        target: _Target
        if kind == "parquet":
            # Only this format has its owner load Arrow.
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
    """What one process has sent."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._pipe = cast("IO[bytes]", process.stdout).fileno()
        self.counts = Counts()
        self.is_done = False

    def next(self) -> Frame:
        """The next frame; its bytes are to be taken, save for the last.

        Raises:
            HighwaterError: the process has failed, as it says.
            PartLostError: it has ended without a word.
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
        """What follows the header.

        Raises:
            PartLostError: the process ended in the middle.
        """
        try:
            yield from chunks(self._pipe, frame.size)
        except LostError:
            raise self._lost() from None

    def _lost(self) -> PartLostError:
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit {code}"
        return PartLostError(f"a process of the replay ended before its part was whole ({how})")


def _hand_over(task: Task, process: subprocess.Popen[bytes]) -> None:
    with suppress(BrokenPipeError):  # it has ended already, which is found out by its silence
        pickle.dump(task, cast("IO[bytes]", process.stdin))
        cast("IO[bytes]", process.stdin).flush()


@contextmanager
def _process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its task, and is ended with the block.

    It is in a process group of its own, so that Ctrl-C reaches the parent alone, which ends it. Its standard input stays open
    as long as the parent lives.
    """
    process = subprocess.Popen(  # noqa: S603 - this program
        command(_PROGRAM),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        pipesize=_PIPE_BYTES,
        process_group=0,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                cast("IO[bytes]", pipe).close()
