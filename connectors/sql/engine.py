"""Owns one query in a DuckDB of its own: locked up, bounded in rows, time and memory, and gone with its answer.

Invariants. A query reads the tables that it is given and nothing else: no file, no network, no variable of the program. Only a
`SELECT` is run, and only one. What is cut off at the limit of rows is reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import duckdb
import pyarrow as pa

from highwater.connectors.replay.arrow_alone import without_pandas
from highwater.connectors.sql.faults import InvalidQueryError, told
from highwater.connectors.sql.query_task import Limits, Sources
from highwater.connectors.sql.scanning import Progress, QueryTimeoutError
from highwater.connectors.sql.views import Views
from highwater.streams.clock import monotonic_seconds

# Nobody writes a longer one by hand, and what parses it takes memory that is not counted.
QUERY_CHARACTERS_MAX = 20_000
_BATCH_ROWS = 2_000
_CONFIGURATION: Mapping[str, str] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",  # variables of the program are no tables
    "temp_directory": "",  # what does not fit in memory is refused, not written to a disk
    "threads": "1",
}
_NO_TABLE = "Table with name"
# What DuckDB raises when it hears Ctrl-C in its own work.
_INTERRUPTED = "Query interrupted"


class Answer:
    """The rows of a query, as they come, and at the end what it took. `columns` are names and types, known before it is run."""

    def __init__(
        self, relation: duckdb.DuckDBPyRelation, progress: Progress, rows_max: int, begun_seconds: float
    ) -> None:
        self._relation = relation
        self._progress = progress
        self._rows_max = rows_max
        self._begun_seconds = begun_seconds
        self._names = distinct_names(relation.columns)
        self.columns = [
            {"name": name, "type": str(kind)} for name, kind in zip(self._names, relation.types, strict=True)
        ]
        self.rows = 0
        self.is_cut_off = False

    @cached_property
    def _reader(self) -> pa.RecordBatchReader:
        return self._relation.to_arrow_reader(_BATCH_ROWS)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow types; the query runs when they are asked for."""
        found = self._reader.schema
        return pa.schema([field.with_name(name) for field, name in zip(found, self._names, strict=True)])

    def close(self) -> None:
        """Read no further."""
        self._reader.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, up to the limit."""
        for batch in self._reader:
            left = self._rows_max - self.rows
            kept = batch.slice(0, left)
            self.rows += kept.num_rows
            if kept.num_rows:
                yield kept.rename_columns(self._names)
            if batch.num_rows > left:
                self.is_cut_off = True
                return

    def summary(self) -> dict[str, Any]:
        """How many rows there are, what was read for them, and how long it took."""
        return {
            "rows": self.rows,
            "is_cut_off": self.is_cut_off,
            "scanned": self._progress.scanned(),
            "seconds": round(monotonic_seconds() - self._begun_seconds, 3),
        }


def distinct_names(names: Sequence[str]) -> list[str]:
    """Names of columns of which no two are equal, as a file and a JSON object need them: a second `key` is `key_1`."""
    found: list[str] = []
    taken = set(names)
    for name in names:
        own, number = name, 0
        while own in found or (number and own in taken):
            number += 1
            own = f"{name}_{number}"
        found.append(own)
    return found


@contextmanager
def answered(
    query: str, sources: Sources, limits: Limits, on_progress: Callable[[Progress], None] | None = None
) -> Iterator[Answer]:
    """Run a query; the block reads its answer. `on_progress` is called as records are scanned.

    Raises:
        InvalidQueryError: it is no single SELECT, or names what is not there; the message is one line.
        QueryTimeoutError: the time is over.
        ReadModelTooLargeError: a read model is too large to be copied.
        UnavailableError: Kafka, the registry or PostgreSQL does not answer.
    """
    begun = monotonic_seconds()
    progress = Progress(begun + limits.seconds, on_progress)
    with without_pandas(), ExitStack() as stack:
        connection = stack.enter_context(_connection(limits))
        views = Views(connection, query, sources, progress)
        stack.enter_context(_in_words(query, progress, views, limits))
        _check(query)
        views.add()
        connection.execute("SET lock_configuration = true")
        timer = threading.Timer(max(0.0, progress.deadline_seconds - monotonic_seconds()), connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            answer = Answer(_planned(connection, query, views), progress, limits.rows, begun)
            yield answer
            answer.close()
        finally:
            timer.cancel()


@contextmanager
def _connection(limits: Limits) -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(":memory:", config={**_CONFIGURATION, "memory_limit": f"{limits.memory_mib}MiB"})
    try:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection
    finally:
        connection.close()


def _check(query: str) -> None:
    """Refuse what is no single SELECT.

    Raises:
        InvalidQueryError: it is none.
        duckdb.Error: it does not parse.
    """
    if len(query) > QUERY_CHARACTERS_MAX:
        raise InvalidQueryError(f"the query has {len(query):,} characters; at most {QUERY_CHARACTERS_MAX:,} are read")
    statements = duckdb.extract_statements(query)
    if len(statements) != 1:
        raise InvalidQueryError(f"only one statement can be run at a time; this has {len(statements) or 'none'}")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise InvalidQueryError(
            f"only SELECT is allowed, because SQL never changes anything; this is {statements[0].type.name}"
        )


def _planned(connection: duckdb.DuckDBPyConnection, query: str, views: Views) -> duckdb.DuckDBPyRelation:
    """The query, bound to its tables; topics of other applications are looked for where a table is missing.

    Raises:
        duckdb.Error: it names what is not there.
        UnavailableError: Kafka or the registry does not answer.
    """
    try:
        return connection.sql(query)
    except duckdb.CatalogException as error:
        if _NO_TABLE not in str(error) or not views.add_foreign():
            raise
    return connection.sql(query)


@contextmanager
def _in_words(query: str, progress: Progress, views: Views, limits: Limits) -> Iterator[None]:
    """Errors as the caller knows them: what went wrong in a scan as it was, the rest in one line."""
    try:
        yield
    except (duckdb.Error, pa.ArrowInvalid, OSError) as error:
        failure = progress.failure
        if isinstance(failure, QueryTimeoutError) or isinstance(error, duckdb.InterruptException):
            raise QueryTimeoutError(
                f"the query did not end within {limits.seconds:g} s; narrow it by _timestamp, _partition or _offset"
            ) from error
        if failure is not None:
            raise failure from error
        if isinstance(error, duckdb.Error):
            raise InvalidQueryError(told(error, query, views.names, views.columns)) from error
        raise
    except RuntimeError as error:
        if str(error) != _INTERRUPTED:
            raise
        raise KeyboardInterrupt from error
