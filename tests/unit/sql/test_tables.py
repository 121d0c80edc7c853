"""The names of topics in SQL, and the nearest name."""

from __future__ import annotations

import re

import duckdb
import pyarrow as pa

from highwater.connectors.replay.table import table_schema
from highwater.connectors.sql.catalogue import READ_MODELS, nearest, table_name, topic_columns, topics_by_table
from highwater.connectors.sql.tables import RECORD_COLUMNS, catalogued_columns
from highwater.schemas.topics import all_topics


def test_each_topic_has_a_table_of_its_own():
    """No two topics, nor a topic and a read model, share a name."""
    assert len(topics_by_table()) == len(list(all_topics()))
    assert set(topics_by_table()).isdisjoint(READ_MODELS)
    assert table_name("feeds.insight-ingested.dlq") == "feeds.insight_ingested_dlq"


def test_no_field_hides_a_column_of_the_record():
    """Every column of every table has its own name, in any case."""
    for name, topic in topics_by_table().items():
        names = [one.casefold() for one in catalogued_columns(topic).names]
        assert len(names) == len(set(names)), name


def test_columns_of_the_record_are_called_as_in_parquet():
    """Apart from the underscore."""
    parquet = set(table_schema(pa.struct([])).names)
    assert {name.removeprefix("_") for name in RECORD_COLUMNS.names} <= parquet


def test_the_nearest_tables_are_found():
    """By a slip of letters, by the name without its schema, with dashes, and in another schema."""
    names = [*topics_by_table(), *READ_MODELS]
    assert nearest("insight_ingested", names) == ["feeds.insight_ingested"]
    assert nearest("feeds.insigt_ingested", names)[0] == "feeds.insight_ingested"
    assert nearest("feeds.insight-ingested", names)[0] == "feeds.insight_ingested"
    assert nearest("league.insight_ingested", names) == ["feeds.insight_ingested"]
    assert nearest("zzzz", names) == []


def test_the_listed_columns_are_those_that_duckdb_has():
    """Names and types of every topic's table; of a structure only that it is one."""
    with duckdb.connect() as connection:
        for name, topic in topics_by_table().items():
            connection.register("t", catalogued_columns(topic).empty_table())
            found = {row[0]: row[1] for row in connection.sql("DESCRIBE t").fetchall()}
            assert topic_columns(topic) == {
                one: re.sub(r"STRUCT\(.*\)", "STRUCT", kind) for one, kind in found.items()
            }, name
