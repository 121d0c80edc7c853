"""One query in a DuckDB of its own: isolated, limited in rows, time and memory, and deleted with its answer.

DuckDB does not count all the memory of a function, and does not interrupt one: `query_process.py` runs this in a process
with limits of the kernel.

Invariants. A query reads only the tables that it is given: no file, no network, no variable of the program. Only a
`SELECT` is run, and only one. Rows cut off at the limit are reported.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from functools import cached_property
from typing import Any

import duckdb
import pyarrow as pa

from highwater.connectors.replay.arrow_alone import without_pandas
from highwater.connectors.sql.answers import JSON_TEXT
from highwater.connectors.sql.faults import error_in_rows, told
from highwater.connectors.sql.foreign_topics import SCHEMA
from highwater.connectors.sql.query_task import (
    OUT_OF_MEMORY,
    InvalidQueryError,
    Limits,
    QueryTimeoutError,
    Sources,
)
from highwater.connectors.sql.scanning import Progress
from highwater.connectors.sql.views import SAME_NAMES, Views
from highwater.streams.clock import monotonic_seconds

# Nobody writes a longer one by hand, and parsing it takes memory that is not counted.
QUERY_CHARACTERS_MAX = 20_000
_BATCH_ROWS = 2_000
_CONFIGURATION: Mapping[str, str] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",  # variables of the program are not tables
    "temp_directory": "",  # a query that does not fit in memory is refused, not written to a disk
    "threads": "1",
    # Settings and errors would name folders of the operator.
    "allow_persistent_secrets": "false",
    "secret_directory": "/",
    "extension_directory": "/",
}
# DuckDB's own would leave out all but one schema, and shows what only holds the rows; TOPICS is what ksqlDB calls them.
_LISTS_TABLES = re.compile(r"\s*(?:show|list)\s+(?:all\s+)?(?:tables|topics)\s*(?:;\s*)?", re.IGNORECASE)
_ALL_TABLES = f"""
    SELECT CASE table_schema WHEN '{SCHEMA}' THEN '"' || table_name || '"' ELSE table_schema || '.' || table_name END AS "table",
        string_agg(column_name, ', ' ORDER BY ordinal_position) AS columns
    FROM information_schema.columns
    WHERE table_schema NOT IN ('main', 'information_schema', 'pg_catalog') GROUP BY ALL
    UNION ALL FROM {SAME_NAMES} ORDER BY ALL
"""  # noqa: S608 - a constant
_NO_TABLE = "Table with name"
_EXPLAIN = re.compile(r"(?<!\s)\s*+EXPLAIN\b", re.IGNORECASE)
# What DuckDB raises on Ctrl-C during its own work.
_INTERRUPTED = "Query interrupted"
_CTRL_C = ": KeyboardInterrupt"


class Evaluation:
    """The rows of a query, as they arrive, and its statistics at the end. `columns` are names and types, known before
    it is run.
    """

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
        """Return the Arrow types; this runs the query."""
        found = self._reader.schema
        fields = zip(found, self.columns, strict=True)
        return pa.schema([_field(field, column["name"], column["type"]) for field, column in fields])

    def close(self) -> None:
        """Read no further."""
        self._reader.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, up to the limit."""
        for batch in self._reader:
            left = self._rows_max - self.rows
            kept = batch.slice(0, left)
            self.rows += kept.num_rows
            if kept.num_rows:
                yield pa.RecordBatch.from_arrays(kept.columns, schema=self.schema)
            if batch.num_rows > left:
                self.is_cut_off = True
                return

    def summary(self) -> dict[str, Any]:
        """Return the number of rows, what was read for them, and the duration."""
        return {
            "rows": self.rows,
            "is_cut_off": self.is_cut_off,
            "scanned": self._progress.scanned(),
            "seconds": round(monotonic_seconds() - self._begun_seconds, 3),
        }


def _field(field: pa.Field, name: str, kind: str) -> pa.Field:
    """A column of the answer; of JSON, which Arrow takes for text, it says so."""
    named = field.with_name(name)
    return named.with_metadata(JSON_TEXT) if kind == "JSON" else named


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return distinct names of columns, as a file and a JSON object need them: a second `key` is `key_1`."""
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
def evaluated(
    query: str, sources: Sources, limits: Limits, on_progress: Callable[[Progress], None] | None = None
) -> Iterator[Evaluation]:
    """Run a query; the block reads its answer. `on_progress` is called as records are scanned.

    Raises:
        InvalidQueryError: it is not a single SELECT, or names something that does not exist; the message is one line.
        QueryTimeoutError: the time is over.
        ReadModelTooLargeError: a read model is too large to be copied.
        UnavailableError: Kafka, the registry or PostgreSQL does not answer.
    """
    begun = monotonic_seconds()
    query = _ALL_TABLES if _LISTS_TABLES.fullmatch(query) else query
    progress = Progress(begun + limits.seconds, on_progress)
    with without_pandas(), ExitStack() as stack:
        connection = stack.enter_context(_connection(limits))
        views = Views(connection, query, sources, progress)
        stack.enter_context(_in_words(query, progress, views, limits))
        is_explained = _check(query)
        views.add()
        connection.execute("SET lock_configuration = true")
        timer = threading.Timer(max(0.0, progress.deadline_seconds - monotonic_seconds()), connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            relation = _planned(connection, query, views)
            relation = _plan_lines(connection, relation) if is_explained else relation
            answer = Evaluation(relation, progress, limits.rows, begun)
            yield answer
            answer.close()
        finally:
            timer.cancel()


@contextmanager
def _connection(limits: Limits) -> Iterator[duckdb.DuckDBPyConnection]:
    with chdir("/"):  # the setting `allowed_paths` names the working directory
        connection = duckdb.connect(":memory:", config={**_CONFIGURATION, "memory_limit": f"{limits.memory_mib}MiB"})
    try:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection
    finally:
        connection.close()


def _check(query: str) -> bool:
    """Refuse anything but a single SELECT, or EXPLAIN of one; return whether it is EXPLAIN.

    Raises:
        InvalidQueryError: it is not one.
        duckdb.Error: it does not parse.
    """
    if len(query) > QUERY_CHARACTERS_MAX:
        raise InvalidQueryError(f"the query has {len(query):,} characters; at most {QUERY_CHARACTERS_MAX:,} are read")
    statements = duckdb.extract_statements(query)
    if len(statements) != 1:
        wrong = (
            f"only one statement can be run at a time; this has {len(statements)}"
            if statements
            else "the query is empty"
        )
        raise InvalidQueryError(wrong)
    kind = statements[0].type
    if kind == duckdb.StatementType.EXPLAIN:
        _check_explained(statements[0].query)
        return True
    if kind != duckdb.StatementType.SELECT:
        raise InvalidQueryError(f"only SELECT is allowed, because SQL never changes anything; this is {kind.name}")
    return False


def _check_explained(query: str) -> None:
    """Refuse EXPLAIN of anything but a single SELECT, and its options: ANALYZE would run the statement.

    Raises:
        InvalidQueryError: it is not EXPLAIN of one.
    """
    try:
        explained = duckdb.extract_statements(_EXPLAIN.sub("", query, count=1))
    except duckdb.Error:
        explained = []
    if [one.type for one in explained] != [duckdb.StatementType.SELECT]:
        raise InvalidQueryError("EXPLAIN shows the plan of one SELECT, and takes no options such as ANALYZE")


def _plan_lines(connection: duckdb.DuckDBPyConnection, explained: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Return the drawing of a plan as rows of one line each."""
    lines = [line.rstrip() for _, drawing in explained.fetchall() for line in drawing.splitlines()]
    return connection.from_arrow(pa.table({"plan": pa.array(lines, pa.string())}))


def _planned(connection: duckdb.DuckDBPyConnection, query: str, views: Views) -> duckdb.DuckDBPyRelation:
    """Return the query, bound to its tables; if a table is missing, topics of other applications are searched.

    Raises:
        duckdb.Error: it names something that does not exist.
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
    """Convert errors for the caller: an error in a scan is raised as it was, others become one line."""
    try:
        yield
    except MemoryError as error:  # of the kernel, outside of DuckDB
        raise InvalidQueryError(OUT_OF_MEMORY) from error
    except (duckdb.Error, pa.ArrowInvalid, OSError) as error:
        if _CTRL_C in str(error):  # heard in Python code that DuckDB or Arrow called
            raise KeyboardInterrupt from error
        failure, found = progress.failure, error_in_rows(error)
        if isinstance(failure, QueryTimeoutError) or isinstance(found, duckdb.InterruptException):
            raise QueryTimeoutError(limits.too_slow) from error
        if failure is not None:
            raise failure from error
        if isinstance(found, duckdb.Error):
            raise InvalidQueryError(told(found, query, views.names, views.columns)) from error
        raise
    except RuntimeError as error:
        if str(error) != _INTERRUPTED:
            raise
        raise KeyboardInterrupt from error
