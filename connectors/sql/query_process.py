"""Owns the process that runs one query for the API, which relays what it says.

Invariants, as of a search's process. The first line is an event: `begin` with the columns, or `refused` with the reason. Events
follow, a `row` each and `end` or `failed` at last, or the bytes of a file, which is whole only if the process ends with 0. It
ends when its parent does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from highwater.connectors.replay.processes import run_task
from highwater.connectors.replay.search_task import INVALID, UNAVAILABLE
from highwater.connectors.replay.searching import PROGRESS_SECONDS, line_of
from highwater.connectors.sql.answers import WRITERS, rows_of
from highwater.connectors.sql.engine import Answer, answered
from highwater.connectors.sql.query_task import QueryTask
from highwater.connectors.sql.scanning import Progress
from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.streams.clock import monotonic_seconds


def main() -> None:
    """Run the query that stands on standard input."""
    run_task(lambda task, output: _Run(task, output).run())


class _Run:
    def __init__(self, task: QueryTask, output: BinaryIO) -> None:
        self._task = task
        self._output = output
        self._has_begun = False
        self._told_at = monotonic_seconds()

    def run(self) -> None:
        """Run the query, and say what comes of it."""
        task = self._task
        try:
            with answered(task.query, task.sources, task.limits, self._on_progress) as answer:
                self._send({"event": "begin", "columns": answer.columns})
                self._has_begun = True
                write: Callable[[Answer], None] = self._write_rows if task.kind is None else self._write_file
                write(answer)
        except HighwaterError as error:
            if self._has_begun and task.kind is not None:
                raise  # the file breaks off
            if self._has_begun:
                self._send({"event": "failed", "detail": str(error)})
            else:
                reason = UNAVAILABLE if isinstance(error, UnavailableError) else INVALID
                self._send({"event": "refused", "reason": reason, "detail": str(error)})

    def _write_rows(self, answer: Answer) -> None:
        for batch in answer.batches():
            for row in rows_of(batch):
                self._output.write(line_of({"event": "row", "values": row}))
            self._output.flush()
        self._send({"event": "end", **answer.summary()})

    def _write_file(self, answer: Answer) -> None:
        assert self._task.kind is not None
        writer = WRITERS[self._task.kind](self._output, answer.schema)
        for batch in answer.batches():
            writer.write(batch)
            self._output.flush()
        writer.close()

    def _on_progress(self, progress: Progress) -> None:
        if self._has_begun and self._task.kind is None and monotonic_seconds() - self._told_at >= PROGRESS_SECONDS:
            self._told_at = monotonic_seconds()
            self._send({"event": "progress", "scanned": progress.scanned()})

    def _send(self, event: dict[str, object]) -> None:
        self._output.write(line_of(event))
        self._output.flush()
