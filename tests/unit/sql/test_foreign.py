"""Topics of other applications as tables of SQL: which a query names, their columns, and what a value of each kind is."""

from __future__ import annotations

import json
import re
from datetime import date
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from highwater.connectors.replay.subject import Subject, newest_record
from highwater.connectors.sql.answers import rows_of
from highwater.connectors.sql.catalogue import nearest, topics_by_table
from highwater.connectors.sql.faults import told
from highwater.connectors.sql.foreign_topics import (
    AmbiguousTopicError,
    foreign_columns,
    foreign_names,
    listed_names,
    named_topics,
)
from highwater.connectors.sql.foreign_values import ForeignColumns
from highwater.connectors.sql.scanning import Chosen
from highwater.connectors.sql.tables import RECORD_COLUMNS, columns_of
from highwater.connectors.sql.tables import foreign_columns as arrow_columns
from highwater.schemas.errors import UnknownSchemaError
from highwater.schemas.topics import foreign_topic
from tests.unit.replay.making import batch, encoded

FIELDS = [
    {"name": "text", "type": "string"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "_Offset", "type": "long", "default": 0},
]
OLD = json.dumps({"type": "record", "name": "Order", "fields": FIELDS[:1]})
NEW = json.dumps({"type": "record", "name": "Order", "fields": FIELDS})
VERSIONS = {8: OLD, 9: NEW, 10: '{"type": "object"}', 11: 'syntax = "proto3";'}
ORDER = encoded({"text": "a", "at": 1_000, "_Offset": 7}, NEW, 9)
VALUES = [ORDER, b'{"n": 123456789012345678901234567890}', b"plain", None, b"\xff\xfe"]
NAMES = ["Orders", "orders", "orders-v1.eu", "shop.orders", "shop.orders.dlq"]


class Columns(ForeignColumns):
    """The columns of a registry with the versions above."""

    def _text_of(self, schema_id: int) -> str:
        if schema_id not in VERSIONS:
            raise UnknownSchemaError(schema_id)
        return VERSIONS[schema_id]


def subject() -> Subject:
    """The subject of the topic."""
    own = newest_record(VERSIONS)
    assert own is not None
    return Subject(foreign_topic("orders"), VERSIONS, own=own)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ('SELECT * FROM "orders-v1.eu" AS o', ["orders-v1.eu"]),
        ('SELECT * FROM "ORDERS-V1.EU"', ["orders-v1.eu"]),
        ('FROM topics."shop.orders" JOIN orders USING (_key)', ["orders", "shop.orders"]),
        ("FROM Orders", ["Orders"]),
        ("SELECT * FROM shop.order_items", []),
        ('SELECT "orders-v1"."eu"', []),
    ],
)
def test_a_query_names_topics_as_identifiers(query: str, named: list[str]) -> None:
    """In quotes, or bare where they are words; a name in capital letters is the topic that is written exactly so."""
    assert sorted(named_topics(NAMES, query)) == sorted(named)


def test_a_name_of_two_topics_is_refused() -> None:
    """Kafka distinguishes capital letters and SQL does not."""
    for query in ("FROM ORDERS", 'FROM orders JOIN "Orders" USING (_key)'):
        with pytest.raises(AmbiguousTopicError, match='"Orders" and "orders"'):
            named_topics(NAMES, query)


def test_topics_of_other_applications_are_told_from_ours() -> None:
    """A list leaves out changelogs and Kafka's own topics, which can be queried by name."""
    on_broker = [
        "orders",
        "feeds.insight-ingested",
        "feeds.insight-ingested.dlq",
        "__consumer_offsets",
        "app-t-changelog",
    ]
    assert foreign_names(on_broker) == ["__consumer_offsets", "app-t-changelog", "orders"]
    assert listed_names(foreign_names(on_broker)) == ["orders"]


def test_the_newest_record_of_a_subject_gives_the_fields() -> None:
    """Schemas of other kinds are passed over; fields of older versions remain, and none hides a column of the record."""
    assert newest_record(VERSIONS) == NEW
    assert newest_record({1: '"string"', 2: "nonsense"}) is None
    columns = foreign_columns(subject().schema)
    assert list(columns)[len(RECORD_COLUMNS) :] == ["_value", "_value_bytes", "text", "at"]
    assert columns["at"] == "TIMESTAMP WITH TIME ZONE"
    assert list(foreign_columns(None)) == [*RECORD_COLUMNS.names, "_value", "_value_bytes"]


def test_the_listed_columns_are_those_that_duckdb_has() -> None:
    """Names and types, with a schema and without; and they are those of the table itself."""
    for schema in (None, subject().schema):
        with duckdb.connect() as connection:
            connection.register("t", arrow_columns(schema).empty_table())
            found = {row[0]: row[1] for row in connection.sql("DESCRIBE t").fetchall()}
        plain = {one: re.sub(r"STRUCT\(.*\)", "STRUCT", kind) for one, kind in found.items()}
        assert foreign_columns(schema) == {**plain, "_value": "JSON"}  # the view makes it so
    assert columns_of(Columns(subject(), None).arrow_type) == arrow_columns(subject().schema)


def rows(decoder: ForeignColumns, names: list[str], condition: Any = None) -> list[dict[str, Any]]:
    """The columns of the values above, as a query reads them."""
    chosen = Chosen(decoder, columns_of(decoder.arrow_type), names, condition)
    return [row for one in chosen.of(batch(VALUES, topic="orders")) for row in one.to_pylist()]


def test_each_kind_of_value_has_its_columns() -> None:
    """Avro has fields and JSON; JSON and text are JSON; a tombstone has nothing; other bytes have the reason and themselves."""
    found = rows(Columns(subject(), None), ["_value", "text", "_value_bytes", "_undecodable"])
    assert [one["_value"] for one in found] == [
        '{"text":"a","at":"1970-01-01T00:00:01Z","_Offset":7}',
        VALUES[1].decode(),
        '"plain"',
        None,
        None,
    ]
    assert [one["text"] for one in found] == ["a", None, None, None, None]
    assert [one["_value_bytes"] for one in found] == VALUES
    assert [one["_undecodable"] is not None for one in found] == [False, False, False, False, True]


def test_only_what_is_asked_for_is_decoded() -> None:
    """Bytes alone, or fields alone; a condition on another column still works."""
    undecoded = Columns(subject(), None)
    assert rows(undecoded, ["_value_bytes"], pa.compute.field("_offset") == 101) == [{"_value_bytes": VALUES[1]}]
    assert rows(undecoded, ["_value_bytes"], pa.compute.field("text") == "a") == [{"_value_bytes": ORDER}]
    narrow = undecoded.narrowed(["_value_bytes"]).decode(batch(VALUES, topic="orders")).column
    assert narrow.field("_value").null_count == narrow.field("text").null_count == len(VALUES)


def test_an_unknown_column_may_be_a_field_of_the_value() -> None:
    """A name unlike any column is read from the JSON; a misspelt one is named as usual."""
    columns = {"orders": list(foreign_columns(subject().schema))}
    said = {
        name: told(duckdb.BinderException(f'Referenced column "{name}" not found'), "", list, columns)
        for name in ("customer", "txt")
    }
    assert said["customer"] == "there is no column 'customer'; a field of the value is _value.customer"
    assert "did you mean text" in said["txt"]


def test_errors_name_topics_of_other_applications() -> None:
    """A slip of letters, a name without its first part, and one that needs quotes."""
    tables = [*topics_by_table(), *(f'"{name}"' for name in NAMES[2:])]
    assert nearest("orders-v2.eu", tables)[0] == '"orders-v1.eu"'
    assert nearest("shop.orders", tables)[0] == '"shop.orders"'
    with duckdb.connect() as connection:
        try:
            connection.sql("SELECT * FROM orders-v1.eu LIMIT 3")
        except duckdb.Error as error:
            found = told(error, "SELECT * FROM orders-v1.eu LIMIT 3", lambda: tables, {})
    assert (
        found == 'syntax error at or near "-" (line 1, column 21); the topic orders-v1.eu needs quotes: "orders-v1.eu"'
    )


def test_decimals_and_dates_are_columns_of_their_types() -> None:
    """Every digit is kept; a number with more digits than the schema allows is null, its row and its JSON exist."""
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    long = {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 2}
    fields = [
        {"name": "amount", "type": ["null", amount]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "long", "type": long},
    ]
    schema = json.dumps({"type": "record", "name": "Payment", "fields": fields})
    sql = foreign_columns(json.loads(schema))
    assert {name: sql[name] for name in ("amount", "day", "long")} == {
        "amount": "DECIMAL(9,2)",
        "day": "DATE",
        "long": "BLOB",
    }

    class Payments(ForeignColumns):
        def _text_of(self, schema_id: int) -> str:
            return schema

    columns = Payments(Subject(foreign_topic("orders"), {9: schema}, own=schema), None)
    amounts = [(1234).to_bytes(2, "big"), None, (10**9).to_bytes(4, "big")]
    values = [encoded({"amount": one, "day": 20_513, "long": b"\1"}, schema, 9) for one in amounts]
    table = columns.decode(batch(values)).column
    assert table.field("amount").to_pylist() == [Decimal("12.34"), None, None]
    assert table.field("day").to_pylist() == [date(2026, 3, 1)] * 3
    assert json.loads(table.field("_value").to_pylist()[2]) == {"amount": 1e7, "day": "2026-03-01", "long": 0.01}


def test_a_decimal_and_a_far_date_are_shown_exactly() -> None:
    """A double where it is the same number, else text; a date after the year 9999 in days since 1970."""
    numbers = pa.array([Decimal("12.34"), Decimal("1234567890123456789.01")], pa.decimal128(38, 2))
    days = pa.array([0, 2**30], pa.int32()).cast(pa.date32())
    rows = list(rows_of(pa.record_batch([numbers, days], ["number", "day"])))
    assert rows == [[12.34, "1970-01-01"], ["1234567890123456789.01", 2**30]]
