"""One query in a process of its own (`query_process.py`), for a command or a program that reads its rows.

Invariants. The process ends with the block that asked, at its limits, and when this process ends, however that ends. An
answer of which a part is missing is an error. One batch of rows is in memory at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from subprocess import Popen
from typing import IO, TYPE_CHECKING, Any, NoReturn, cast

import orjson

from highwater.connectors.children import OUT_OF_TIME, limit_passed
from highwater.connectors.replay.arrow_alone import without_pandas
from highwater.connectors.replay.processes import hand_over, result_in, result_pipe, started
from highwater.connectors.sql.query_task import (
    ARROW,
    OUT_OF_MEMORY,
    InvalidQueryError,
    Limits,
    QueryTask,
    QueryTimeoutError,
    Sources,
)
from highwater.schemas.errors import HighwaterError, UnavailableError

if TYPE_CHECKING:
    import pyarrow as pa

# Where the metadata of Arrow's stream have the columns.
COLUMNS = "highwater.columns"
_PROGRAM = "from highwater.connectors.sql.query_process import main; main()"


class QueryLostError(UnavailableError):
    """The process of a query ended before it was done. Run the query again."""


class Answer:
    """The rows of a query, as they arrive, and its statistics at the end. `columns` are names and types."""

    def __init__(self, output: IO[bytes], ended: _Ended) -> None:
        import pyarrow as pa  # noqa: PLC0415 - while the process loads the same

        self._ended = ended
        self._summary: dict[str, Any] | None = None
        self._cut_off = pa.ArrowInvalid, OSError
        try:
            self._reader = pa.ipc.open_stream(output)
        except self._cut_off:
            ended.fail()
        self.columns = orjson.loads(self._reader.schema.metadata[COLUMNS.encode()])
        self.schema = self._reader.schema.remove_metadata()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, up to the limit.

        Raises:
            InvalidQueryError, QueryTimeoutError, UnavailableError: as of `answered`, after the first rows.
        """
        while (batch := self._next()) is not None:
            yield batch.replace_schema_metadata(None)
        self._summary = self._ended.result()

    def _next(self) -> pa.RecordBatch | None:
        try:
            return self._reader.read_next_batch()
        except StopIteration:
            return None
        except self._cut_off:
            self._ended.fail()

    def summary(self) -> dict[str, Any]:
        """Return the number of rows, what was read for them, and the duration; once all rows are read."""
        assert self._summary is not None
        return self._summary


@contextmanager
def answered(query: str, sources: Sources, limits: Limits) -> Iterator[Answer]:
    """Run a query; the block reads its answer.

    Raises:
        InvalidQueryError: it is not a single SELECT, names something that does not exist, or needs too much memory; the
            message is one line.
        QueryTimeoutError: the time is over.
        ReadModelTooLargeError: a read model is too large to be copied.
        UnavailableError: Kafka, the registry or PostgreSQL does not answer, or the process was lost.
    """
    with without_pandas(), ExitStack() as stack:
        result, inherited = stack.enter_context(result_pipe())
        try:
            process = stack.enter_context(started(_PROGRAM, str(inherited), pass_fds=(inherited,)))
        finally:
            os.close(inherited)
        hand_over(QueryTask(query, sources, limits, ARROW), process)
        yield Answer(cast("IO[bytes]", process.stdout), _Ended(process, result, limits))


class _Ended:
    """The end of a query's process: its result, or why there is none."""

    def __init__(self, process: Popen[bytes], result: int, limits: Limits) -> None:
        self._process = process
        self._result = result
        self._limits = limits

    def result(self) -> dict[str, Any]:
        """Return the summary of a query that ended well.

        Raises:
            HighwaterError: it did not.
        """
        status = self._process.wait()
        found = result_in(self._result)
        if isinstance(found, dict):
            return found
        if isinstance(found, HighwaterError):
            raise found
        if -status in OUT_OF_TIME:
            raise QueryTimeoutError(self._limits.too_slow)
        if limit_passed(status) is not None:
            raise InvalidQueryError(OUT_OF_MEMORY)
        raise QueryLostError(f"the process of the query ended with {status} before it was done")

    def fail(self) -> NoReturn:
        """Raise why the output ended early; errors as of `result`."""
        self.result()
        raise QueryLostError("the process of the query ended before its last rows")
