"""The tables that a query finds in its DuckDB: topics of the catalogue, read models, and topics of other applications.

Invariant: a table is created only if the query contains its name, or if the query lists the tables. The broker is
queried for topics of other applications only if the query names a table that is not in the catalogue.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any

import duckdb
import pyarrow as pa

from highwater.connectors.kafka.admin import Admin
from highwater.connectors.replay.decoding import Decoder
from highwater.connectors.replay.subject import Subject
from highwater.connectors.sql.catalogue import READ_MODELS, topics_by_table
from highwater.connectors.sql.foreign_topics import (
    SCHEMA,
    VALUE,
    fetch_foreign_schemas,
    foreign_names,
    listed_names,
    named_topics,
    quoted_name,
)
from highwater.connectors.sql.foreign_values import ForeignColumns
from highwater.connectors.sql.query_task import Sources
from highwater.connectors.sql.scanning import Progress, TopicTable
from highwater.connectors.sql.tables import catalogued_columns, foreign_columns
from highwater.schemas.errors import UnavailableError
from highwater.schemas.topics import foreign_topic

# A table of names and columns that only the list of tables reads.
SAME_NAMES = "main.same_names"
# A query that lists the tables sees all of them.
_ASKS_FOR_TABLES = re.compile(r"\bshow\b|information_schema|duckdb_(?:tables|columns|views)|pragma_show", re.IGNORECASE)


class Views:
    """The tables of one query. `columns` has those of the tables that the query names."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, query: str, sources: Sources, progress: Progress) -> None:
        self._connection = connection
        self._query = query
        self._sources = sources
        self._progress = progress
        self._foreign: list[str] | None = None
        self.columns: dict[str, list[str]] = {}
        # Of topics that DuckDB takes for others, because their names differ in capital letters alone: name, columns.
        self._same: list[tuple[str, str]] = []

    def add(self) -> None:
        """Create the tables of the catalogue whose name occurs in the query, perhaps a few too many.

        Raises:
            UnavailableError: Kafka, the registry or PostgreSQL does not answer.
            ReadModelTooLargeError: a read model is too large to be copied.
        """
        text = self._query.casefold()
        asks = _ASKS_FOR_TABLES.search(self._query) is not None
        for schema in sorted({name.partition(".")[0] for name in (*topics_by_table(), *READ_MODELS)} | {SCHEMA}):
            self._connection.execute(f'CREATE SCHEMA "{schema}"')
        self._connection.execute(f"SET search_path = 'main,{SCHEMA}'")
        self._add_topics(text, asks=asks)
        self._add_read_models(text, asks=asks)
        if asks:
            self.add_foreign()
            self._list_foreign()
            same = {"name": [name for name, _ in self._same], "columns": [columns for _, columns in self._same]}
            self._add(SAME_NAMES, pa.table(same, pa.schema([("name", pa.string()), ("columns", pa.string())])))

    def _add_topics(self, text: str, *, asks: bool) -> None:
        for name, topic in topics_by_table().items():
            if _is_named(name, text) or topic.name.casefold() in text:
                decoder = Decoder(Subject.fetch(topic, self._sources.registry))
                table = TopicTable(name, topic.name, self._sources.client, decoder, self._progress)
                self._add(name, table)
                self._connection.execute(f'CREATE VIEW "{topic.name}" AS SELECT * FROM {name}')  # noqa: S608 - names of the catalogue
                self.columns[name] = table.schema.names
            elif asks:
                self._add(name, catalogued_columns(topic).empty_table())

    def _add_read_models(self, text: str, *, asks: bool) -> None:
        models = [name for name in READ_MODELS if _is_named(name, text)]
        if not models and not asks:
            return
        from highwater.connectors.sql.read_models import fetch_read_models  # noqa: PLC0415 - PostgreSQL's client

        for name, rows in (asyncio.run(fetch_read_models(self._sources.database, models)) if models else {}).items():
            self._add(name, rows)
            self.columns[name] = rows.schema.names
        if asks:
            others = [name for name in READ_MODELS if name not in models]
            for name, rows in asyncio.run(fetch_read_models(self._sources.database, others, has_rows=False)).items():
                self._add(name, rows)

    def add_foreign(self) -> bool:
        """Create the tables of other applications' topics that the query names; return false if it names none.

        Raises:
            AmbiguousTopicError: one name matches two topics.
            UnavailableError: Kafka or the registry does not answer.
        """
        named = named_topics(self._foreign_names(), self._query)
        for name in named:
            subject = Subject.fetch_foreign(foreign_topic(name), self._sources.registry)
            decoder = ForeignColumns(subject, self._sources.registry)
            # A producer may set any time, so times are not always increasing.
            table = TopicTable(
                quoted_name(name), name, self._sources.client, decoder, self._progress, is_in_order=False
            )
            self._add_other(name, table)
            self.columns[quoted_name(name)] = table.schema.names
        return bool(named)

    def _list_foreign(self) -> None:
        others = [name for name in listed_names(self._foreign_names()) if quoted_name(name) not in self.columns]
        taken = {name.casefold() for name in self.columns}
        for name, schema in fetch_foreign_schemas(others, self._sources.registry).items():
            columns = foreign_columns(schema)
            table = quoted_name(name)
            if table.casefold() in taken:
                self._same.append((table, ", ".join(columns.names)))
            else:
                taken.add(table.casefold())
                self._add_other(name, columns.empty_table())

    def _foreign_names(self) -> list[str]:
        if self._foreign is None:
            admin = Admin(dict(self._sources.client))
            self._foreign = foreign_names(asyncio.run(admin.partition_counts()))
        return self._foreign

    def names(self) -> Iterable[str]:
        """Return every table, for the hint of an error; without other applications' if the broker does not answer."""
        try:
            foreign = self._foreign_names()
        except UnavailableError:
            foreign = []
        return [*topics_by_table(), *READ_MODELS, *map(quoted_name, foreign)]

    def _add(self, name: str, rows: Any) -> None:
        self._register(name, name, rows, "*")

    def _add_other(self, topic: str, rows: Any) -> None:
        columns = f"* REPLACE ({VALUE}::JSON AS {VALUE})"
        self._register(f"{SCHEMA}_{topic}", f'{SCHEMA}."{topic}"', rows, columns)

    def _register(self, name: str, view: str, rows: Any, columns: str) -> None:
        own = f"_rows_of_{name.replace('.', '_')}"
        self._connection.register(own, rows)
        self._connection.execute(f'CREATE VIEW {view} AS SELECT {columns} FROM "{own}"')  # noqa: S608 - names of topics


def _is_named(table: str, text: str) -> bool:
    """Return whether a lower-case text may name a table; its schema and its name may be separate, in quotes."""
    schema, _, name = table.partition(".")
    return name in text and schema in text
