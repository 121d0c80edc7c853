"""Owns the processes that recluster. Invariant: a rebuild that takes too much memory or processor time, crashes or is
killed fails alone: the event loop never waits on the CPU, and the next job gets a fresh process. A process that makes
progress is not ended for being slow (`streams/progress.py`).

A worker is `pool_process.serve` in its own interpreter: it reads jobs from standard input and writes replies to
standard output, each a pickle after its length, a job's vectors as raw bytes after its pickle. We do not use
`ProcessPoolExecutor`: that one is broken permanently when one child dies, and cannot end a job that runs too long.
"""

import asyncio
import contextlib
import os
import pickle
import signal
import struct
import sys
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from highwater.connectors.children import ProcessorTimeError, StalledError, while_working
from highwater.schemas.errors import HighwaterError
from highwater.streams.clock import monotonic_seconds
from highwater.streams.feeds.starts import StartPace
from highwater.streams.feeds.versions import NewVersion, Window
from highwater.streams.progress import HOUR_SECONDS, WorkLimit

MEMORY_BYTES_MAX = 1 << 30
# Processor time, which a busy machine does not stretch: 20,000 insights take 10 s.
PROCESSOR_SECONDS_MAX = 90.0
# Half a minute without one hundredth of a second of a core, and without a page from the disk: at load 70 a process of
# our niceness gets thirty of them. The last bounds are a hundred times what either takes on an idle machine.
START_LIMIT = WorkLimit(quiet_seconds_max=30.0, total_seconds_max=HOUR_SECONDS)
REBUILD_LIMIT = WorkLimit(quiet_seconds_max=30.0, total_seconds_max=2 * HOUR_SECONDS)
# A process has 200 MB and takes 2 s to start: it is kept between rebuilds, and ends after this long without one.
KEEP_SECONDS = 60.0
# A process that is about to exit does so within this; otherwise it is killed.
_DEATH_SECONDS = 0.2
# Written and drained in pieces, so that no single write blocks the loop.
CHUNK_BYTES = 1 << 20
REPLY_BYTES_MAX = 256 << 20

# Not `-m`: its classes would be pickled as those of `__main__`.
_PROGRAM = (
    "import sys; from highwater.connectors.feeds.pool_process import serve; serve(int(sys.argv[1]), int(sys.argv[2]))"
)
# The length before each pickle.
LENGTH = struct.Struct("<Q")


class RebuildMemoryError(HighwaterError):
    """A rebuild exceeded its memory limit. Lower HIGHWATER_REBUILD_INSIGHTS_MAX or give the workers more memory."""


class RebuildTimeoutError(HighwaterError):
    """A rebuild took too much processor time. Lower HIGHWATER_REBUILD_INSIGHTS_MAX or raise HIGHWATER_REBUILD_SECONDS_MAX."""


class RebuildMachineError(HighwaterError):
    """The machine failed a rebuild: its process did not start, was killed or made no progress. Give the workers more
    memory or processor time, or fewer neighbours; the rebuild is requested again by itself.
    """

    retriable = True
    retry_after_ms = 1_000


class RebuildWorkerLostError(HighwaterError):
    """The process of a rebuild crashed. It is retried in a new one; if it recurs, report the signal and the log."""

    retriable = True
    retry_after_ms = 1_000


class RebuildInputError(HighwaterError):
    """The vectors or texts of a rebuild cannot be clustered. Read the message and correct the embeddings."""


class RebuildFailedError(HighwaterError):
    """A rebuild failed unexpectedly. Report the message, which contains the traceback."""


@dataclass(eq=False)
class _Worker:
    process: asyncio.subprocess.Process
    is_ready: bool = field(default=False)
    leaving: asyncio.TimerHandle | None = None

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    async def exchange(self, header: bytes, vectors: memoryview) -> tuple[str, Any]:
        """Send a job and await its reply; a broken pipe or short read means that the process has died."""
        writer = self.process.stdin
        assert writer is not None
        with contextlib.suppress(ConnectionError):  # a worker short of memory replies before it has read everything
            writer.write(LENGTH.pack(len(header)) + header)
            await writer.drain()
            for first in range(0, len(vectors), CHUNK_BYTES):
                writer.write(vectors[first : first + CHUNK_BYTES])
                await writer.drain()
        return await self.reply()

    async def reply(self) -> tuple[str, Any]:
        reader = self.process.stdout
        assert reader is not None
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if length > REPLY_BYTES_MAX:
            raise RebuildFailedError(f"the reply of a rebuild has {length} bytes, more than {REPLY_BYTES_MAX}")
        outcome: tuple[str, Any] = pickle.loads(await reader.readexactly(length))  # noqa: S301 our own child wrote it
        return outcome

    async def end(self) -> None:
        """Kill and reap it; at once, since a worker holds nothing that is not in the log."""
        try:
            # One that died by itself is reaped first: a signal would replace its exit status.
            await asyncio.wait_for(self.process.wait(), _DEATH_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        await self.process.wait()


class ClusterPool:
    """Runs at most `processes` rebuilds at a time, each in a process with limited memory. One event loop only."""

    def __init__(
        self,
        processes: int = 1,
        *,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
        processor_seconds_max: float = PROCESSOR_SECONDS_MAX,
        keep_seconds: float = KEEP_SECONDS,
        start_limit: WorkLimit = START_LIMIT,
        rebuild_limit: WorkLimit = REBUILD_LIMIT,
    ) -> None:
        self._memory_bytes_max = memory_bytes_max
        self._processor_seconds_max = processor_seconds_max
        self._keep_seconds = keep_seconds
        self._start_limit = start_limit
        self._rebuild_limit = rebuild_limit
        self._slots = asyncio.Semaphore(processes)
        self._pace = StartPace(processes, processes)
        self._starting = 0
        self._has_changed = asyncio.Event()  # a process is idle, or its start has ended
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Return the ids of live worker processes."""
        return tuple(sorted(worker.process.pid for worker in self._all if worker.is_alive))

    @property
    def starts_at_once(self) -> int:
        """Return how many processes may start at once; fewer while starts are slow."""
        return self._pace.at_once

    async def run(self, window: Window) -> NewVersion:
        """Build a version in a process of the pool; waits for a free one.

        Raises:
            RebuildMemoryError: over `memory_bytes_max`.
            RebuildTimeoutError: over `processor_seconds_max`.
            RebuildMachineError: the process did not start, was killed or made no progress.
            RebuildWorkerLostError: the process crashed.
            RebuildInputError: the job is malformed, or a value is not finite.
            RebuildFailedError: any other error of the job.
        """
        vectors = np.ascontiguousarray(window.vectors, dtype="<f4")
        header = pickle.dumps((replace(window, vectors=vectors[:0]), vectors.shape), protocol=5)
        async with self._slots:
            if self._is_closed:
                raise RebuildWorkerLostError("the pool of rebuild processes is closed")
            worker = await self._take()
            is_whole = False
            try:
                exchange = worker.exchange(header, bytes_of(vectors))
                kind, value = await while_working(
                    worker.process.pid, exchange, self._rebuild_limit, self._processor_seconds_max
                )
                is_whole = kind in ("done", "input")
            except StalledError as error:
                raise RebuildMachineError(f"a rebuild {error}") from error
            except ProcessorTimeError as error:
                raise RebuildTimeoutError(f"a rebuild {error}") from error
            except (OSError, asyncio.IncompleteReadError) as error:
                raise await self._cause_of_death(worker) from error
            finally:
                await self._give_back(worker, is_whole=is_whole)
        return _result_of(kind, value)

    async def aclose(self) -> None:
        """End every process; jobs in progress fail as lost."""
        self._is_closed = True
        workers, self._idle = list(self._all), []
        self._all.clear()
        await asyncio.gather(*(worker.end() for worker in workers), *self._leaving)

    async def _take(self) -> _Worker:
        while True:
            while self._idle:
                worker = self._idle.pop()
                assert worker.leaving is not None
                worker.leaving.cancel()
                if worker.is_alive:
                    return worker
                self._all.discard(worker)
            if self._starting < self._pace.at_once:
                return await self._start_at_pace()
            self._has_changed.clear()
            await self._has_changed.wait()

    async def _start_at_pace(self) -> _Worker:
        began = monotonic_seconds()
        self._starting += 1
        try:
            worker = await self._start()
        except RebuildMachineError:
            self._pace = self._pace.after(None)
            raise
        else:
            self._pace = self._pace.after(monotonic_seconds() - began)
            return worker
        finally:
            self._starting -= 1
            self._has_changed.set()

    async def _start(self) -> _Worker:
        # One BLAS thread: two save a quarter of the wall time and cost a fifth more CPU, on cores that ingest shares;
        # each also maps buffers of its own, which count against the memory limit.
        environment = {
            **os.environ,
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", _PROGRAM, str(self._memory_bytes_max), str(os.getpid())),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment,
            )
        except OSError as error:  # no memory, or no process number left
            raise RebuildMachineError(f"a rebuild process could not be started: {error}") from error
        worker = _Worker(process)
        self._all.add(worker)
        try:
            await while_working(process.pid, worker.reply(), self._start_limit)
        except StalledError as error:
            await self._give_back(worker, is_whole=False)
            raise RebuildMachineError(f"the start of a rebuild process {error}") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            await self._give_back(worker, is_whole=False)
            how = _how_it_ended(worker)
            raise RebuildMachineError(f"a rebuild process did not start ({how}); its error is in the log") from error
        except BaseException:
            await self._give_back(worker, is_whole=False)
            raise
        return worker

    async def _give_back(self, worker: _Worker, *, is_whole: bool) -> None:
        if is_whole and worker.is_alive and not self._is_closed:
            self._idle.append(worker)
            worker.leaving = asyncio.get_running_loop().call_later(self._keep_seconds, self._let_go, worker)
            self._has_changed.set()
            return
        self._all.discard(worker)
        await worker.end()

    def _let_go(self, worker: _Worker) -> None:
        """End a process that was idle for a while."""
        if worker in self._idle:
            self._idle.remove(worker)
            task = asyncio.create_task(self._give_back(worker, is_whole=False), name="rebuild-process-ends")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _cause_of_death(self, worker: _Worker) -> HighwaterError:
        await worker.end()
        is_killed = worker.process.returncode == -signal.SIGKILL and not self._is_closed
        # Its output ended, so it had died before: the kernel killed it, for want of memory, or an operator did.
        kind = RebuildMachineError if is_killed else RebuildWorkerLostError
        return kind(f"the rebuild's process died ({_how_it_ended(worker)})")


def _how_it_ended(worker: _Worker) -> str:
    code = worker.process.returncode or 0
    return signal.Signals(-code).name if code < 0 else f"exit {code}"


def _result_of(kind: str, value: Any) -> NewVersion:
    if kind == "done":
        assert isinstance(value, NewVersion)
        return value
    raise {"memory": RebuildMemoryError, "input": RebuildInputError}.get(kind, RebuildFailedError)(str(value))


def bytes_of(vectors: NDArray[np.float32]) -> memoryview:
    """Return the bytes of vectors."""
    return vectors.reshape(-1).view(np.uint8).data
