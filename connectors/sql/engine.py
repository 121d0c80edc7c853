"""Owns one query in a DuckDB of its own: locked up, bounded in rows, time and memory, and gone with its answer.

Invariants. A query reads the tables that it is given and nothing else: no file, no network, no variable of the program. Only a
`SELECT` is run, and only one. What is cut off at the limit of rows is reported.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import duckdb
import pyarrow as pa

from highwater.connectors.replay.arrow_alone import without_pandas
from highwater.connectors.replay.decoding import Decoder
from highwater.connectors.replay.subject import Subject
from highwater.connectors.sql.catalogue import READ_MODELS, topics_by_table
from highwater.connectors.sql.faults import InvalidQueryError, told
from highwater.connectors.sql.query_task import Limits, Sources
from highwater.connectors.sql.read_models import fetch_read_models
from highwater.connectors.sql.scanning import Progress, QueryTimeoutError, TopicTable
from highwater.connectors.sql.tables import catalogued_columns
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
# A query that asks which tables there are is shown all of them.
_ASKS_FOR_TABLES = re.compile(r"\bshow\b|information_schema|duckdb_(?:tables|columns|views)|pragma_show", re.IGNORECASE)


class Answer:
    """The rows of a query, as they come, and at the end what it took. `columns` are names and types, known before it is run."""

    def __init__(
        self, relation: duckdb.DuckDBPyRelation, progress: Progress, rows_max: int, begun_seconds: float
    ) -> None:
        self._relation = relation
        self._progress = progress
        self._rows_max = rows_max
        self._begun_seconds = begun_seconds
        self.columns = [
            {"name": name, "type": str(kind)} for name, kind in zip(relation.columns, relation.types, strict=True)
        ]
        self.rows = 0
        self.is_cut_off = False

    @cached_property
    def _reader(self) -> pa.RecordBatchReader:
        return self._relation.to_arrow_reader(_BATCH_ROWS)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow types; the query runs when they are asked for."""
        return self._reader.schema

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
                yield kept
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
    columns: dict[str, list[str]] = {}
    with without_pandas(), _connection(limits) as connection, _in_words(query, progress, columns, limits):
        _check(query)
        _add_tables(connection, query, sources, progress, columns)
        connection.execute("SET lock_configuration = true")
        timer = threading.Timer(max(0.0, progress.deadline_seconds - monotonic_seconds()), connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            answer = Answer(connection.sql(query), progress, limits.rows, begun)
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


def _add_tables(
    connection: duckdb.DuckDBPyConnection,
    query: str,
    sources: Sources,
    progress: Progress,
    columns: dict[str, list[str]],
) -> None:
    """Make the tables that the query may name: those whose name stands in it somewhere, which may be some too many."""
    text = query.casefold()
    asks = _ASKS_FOR_TABLES.search(query) is not None
    topics = topics_by_table()
    for schema in sorted({name.partition(".")[0] for name in (*topics, *READ_MODELS)}):
        connection.execute(f'CREATE SCHEMA "{schema}"')
    for name, topic in topics.items():
        if _is_named(name, text) or topic.name.casefold() in text:
            decoder = Decoder(Subject.fetch(topic, sources.registry))
            table = TopicTable(name, topic.name, sources.client, decoder, progress)
            _add(connection, name, table)
            connection.execute(f'CREATE VIEW "{topic.name}" AS SELECT * FROM {name}')  # noqa: S608 - names of the catalogue
            columns[name] = table.schema.names
        elif asks:
            _add(connection, name, catalogued_columns(topic).empty_table())
    models = [name for name in READ_MODELS if _is_named(name, text)]
    for name, rows in (asyncio.run(fetch_read_models(sources.database, models)) if models else {}).items():
        _add(connection, name, rows)
        columns[name] = rows.schema.names
    if asks:
        others = [name for name in READ_MODELS if name not in models]
        for name, rows in asyncio.run(fetch_read_models(sources.database, others, has_rows=False)).items():
            _add(connection, name, rows)


def _is_named(table: str, text: str) -> bool:
    """Whether a text in small letters may name a table; its schema and its name may stand apart, in quotes."""
    schema, _, name = table.partition(".")
    return name in text and schema in text


def _add(connection: duckdb.DuckDBPyConnection, name: str, rows: Any) -> None:
    own = f"_rows_of_{name.replace('.', '_')}"
    connection.register(own, rows)
    connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {own}")  # noqa: S608 - names of the catalogue


@contextmanager
def _in_words(query: str, progress: Progress, columns: Mapping[str, list[str]], limits: Limits) -> Iterator[None]:
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
            tables = [*topics_by_table(), *READ_MODELS]
            raise InvalidQueryError(told(error, query, tables, columns)) from error
        raise
