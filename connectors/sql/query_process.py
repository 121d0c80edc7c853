"""The process that runs one query: for the API, which relays its output, or for `engine.answered`.

Invariants, as for a search's process. The first line is an event: `begin` with the columns, or `refused` with the
reason. Then come events, a `row` each and finally `end` or `failed`, or the bytes of a file, which is complete only if
the process ends with 0. A file begins once its first rows are known, so that a query that fails before is refused. The
process ends when its parent does, and the kernel limits its memory and processor time: DuckDB counts neither for a
function over a long list. Arrow's stream has no first line; the columns are in its metadata.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, BinaryIO, cast

import orjson
import pyarrow as pa

from highwater.connectors.children import limit_child
from highwater.connectors.replay.processes import NICENESS, run_task
from highwater.connectors.replay.search_task import INVALID, UNAVAILABLE
from highwater.connectors.replay.searching import PROGRESS_SECONDS, line_of
from highwater.connectors.sql.answers import WRITERS, rows_of
from highwater.connectors.sql.engine import COLUMNS
from highwater.connectors.sql.query_task import ARROW, QueryTask
from highwater.connectors.sql.sandbox import Evaluation, evaluated
from highwater.connectors.sql.scanning import Progress
from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.streams.clock import monotonic_seconds

# DuckDB, Arrow and the readers of topics beside what DuckDB counts: half of it is taken before a query is run. The rest is
# for the records that are being decoded.
_BESIDE_MIB = 512
# DuckDB is interrupted first, which gives the better message.
_SECONDS_MORE = 1.0


def main() -> None:
    """Run the query on standard input."""
    run_task(_work)


def _work(task: QueryTask, output: BinaryIO) -> dict[str, Any] | None:
    seconds = task.limits.seconds + _SECONDS_MORE
    limit_child((task.limits.memory_mib + _BESIDE_MIB) << 20, seconds, seconds)
    if task.kind != ARROW:
        os.nice(NICENESS)
        _Run(task, output).run()
        return None
    with evaluated(task.query, task.sources, task.limits) as answer:
        columns = {COLUMNS: orjson.dumps(answer.columns)}
        with pa.ipc.new_stream(output, answer.schema.with_metadata(columns)) as stream:
            for batch in answer.batches():
                stream.write_batch(batch)
                output.flush()
        return answer.summary()


class _Run:
    def __init__(self, task: QueryTask, output: BinaryIO) -> None:
        self._task = task
        self._output = output
        self._has_begun = False
        self._told_at = monotonic_seconds()

    def run(self) -> None:
        """Run the query, and report its result."""
        task = self._task
        try:
            with evaluated(task.query, task.sources, task.limits, self._on_progress) as answer:
                write: Callable[[Evaluation], None] = self._write_rows if task.kind is None else self._write_file
                write(answer)
        except HighwaterError as error:
            if self._has_begun and task.kind is not None:
                raise  # the file is cut off
            if self._has_begun:
                self._send({"event": "failed", "detail": str(error)})
            else:
                reason = UNAVAILABLE if isinstance(error, UnavailableError) else INVALID
                self._send({"event": "refused", "reason": reason, "detail": str(error)})

    def _begin(self, answer: Evaluation) -> None:
        self._send({"event": "begin", "columns": answer.columns})
        self._has_begun = True

    def _write_rows(self, answer: Evaluation) -> None:
        self._begin(answer)
        for batch in answer.batches():
            for row in rows_of(batch):
                self._output.write(line_of({"event": "row", "values": row}))
            self._output.flush()
        self._send({"event": "end", **answer.summary()})

    def _write_file(self, answer: Evaluation) -> None:
        assert self._task.kind is not None
        file = _HeldFile(self._output)
        writer = WRITERS[self._task.kind](cast("BinaryIO", file), answer.schema)
        for batch in answer.batches():
            writer.write(batch)
            self._begin_file(answer, file)
            self._output.flush()
        self._begin_file(answer, file)
        writer.close()

    def _begin_file(self, answer: Evaluation, file: _HeldFile) -> None:
        if not self._has_begun:
            self._begin(answer)
            file.release()

    def _on_progress(self, progress: Progress) -> None:
        if self._has_begun and self._task.kind is None and monotonic_seconds() - self._told_at >= PROGRESS_SECONDS:
            self._told_at = monotonic_seconds()
            self._send({"event": "progress", "scanned": progress.scanned()})

    def _send(self, event: dict[str, object]) -> None:
        self._output.write(line_of(event))
        self._output.flush()


class _HeldFile:
    """A file of which nothing is written before `release`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._held: list[bytes] | None = []
        self.closed = False

    def write(self, data: Any) -> int:
        """Write it, or hold a copy: Arrow reuses its memory."""
        if self._held is None:
            return self._file.write(data)
        self._held.append(bytes(data))
        return len(self._held[-1])

    def release(self) -> None:
        """Write what was held; what follows is written at once."""
        held, self._held = self._held or [], None
        self._file.writelines(held)

    def flush(self) -> None:
        """Do nothing: the owner of the file flushes it."""

    def writable(self) -> bool:
        """Return true."""
        return True
