"""A query over topics of other applications in DuckDB, over records that are not read from a broker."""

from __future__ import annotations

import _thread
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from highwater.connectors.replay.subject import Subject
from highwater.connectors.sql import read_models
from highwater.connectors.sql.answers import JsonLines, rows_of
from highwater.connectors.sql.foreign_topics import AmbiguousTopicError
from highwater.connectors.sql.query_task import InvalidQueryError, Limits, Sources
from highwater.connectors.sql.sandbox import distinct_names, evaluated
from highwater.connectors.sql.scanning import Chosen, TopicTable
from highwater.connectors.sql.views import Views
from tests.unit.replay.making import batch

NAMES = ["Orders", "binary", "orders", "orders-v1.eu"]
VALUES = [b'{"n": 1, "to": {"city": "Ulm"}}', b'{"n": 2}', b"plain", None]
NOWHERE = Sources({}, None, None)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A broker with three topics of the same records; the queries that it received."""
    questions: list[str] = []

    def names(_: Views) -> list[str]:
        questions.append("topics")
        return NAMES

    def read(table: Any, columns: list[str], condition: Any) -> Iterator[pa.RecordBatch]:
        questions.append(table._topic)
        yield from Chosen(table._decoder, table._columns, columns, condition).of(batch(VALUES, topic=table._topic))

    monkeypatch.setattr(Views, "_foreign_names", names)
    monkeypatch.setattr(Subject, "fetch_foreign", lambda topic, registry: None)
    monkeypatch.setattr(TopicTable, "_read", read)
    return questions


def rows(query: str) -> list[list[Any]]:
    """The answer of a query."""
    with evaluated(query, NOWHERE, Limits(100, 10)) as answer:
        return [row for one in answer.batches() for row in rows_of(one)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ('SELECT _value.n, _value.to.city FROM "orders-v1.eu" WHERE _offset < 102', [["1", '"Ulm"'], ["2", None]]),
        ("SELECT _value->>'$' FROM topics.orders WHERE _value IS NOT NULL AND _value.n IS NULL", [["plain"]]),
        ("SELECT count(*), count(_value), max((_value.n)::INT) FROM Orders", [[4, 3, 2]]),
        ('WITH o AS (FROM orders) SELECT count(*) FROM o JOIN "orders-v1.eu" USING (_offset)', [[4]]),
        ("SELECT column_type FROM (DESCRIBE orders) WHERE column_name LIKE '\\_value%' ESCAPE '\\'", [["JSON"], ["BLOB"]]),
    ],
)  # fmt: skip
def test_a_topic_of_another_application_is_a_table(asked: list[str], query: str, expected: list[list[Any]]) -> None:
    """By its name, in quotes where it needs them, in every place where a table may stand."""
    assert expected == rows(query)


def test_the_broker_is_asked_only_for_tables_that_are_not_ours(asked: list[str]) -> None:
    """A query that needs none of its topics does without it."""
    assert rows("SELECT 1") == [[1]]
    assert rows("WITH orders AS (SELECT 2 AS n) SELECT n FROM orders") == [[2]]
    assert asked == []
    rows("FROM orders")
    assert asked == ["topics", "orders"]


def test_json_is_part_of_a_line_of_json(asked: list[str]) -> None:
    """Not a text within it; a null is a null."""
    file = io.BytesIO()
    with evaluated("SELECT _value, _key FROM orders WHERE _offset IN (100, 103)", NOWHERE, Limits(9, 9)) as answer:
        writer = JsonLines(file, answer.schema)
        for one in answer.batches():
            writer.write(one)
    found = [json.loads(line) for line in file.getvalue().splitlines()]
    assert found == [{"_value": {"n": 1, "to": {"city": "Ulm"}}, "_key": "k"}, {"_value": None, "_key": "k"}]


def test_all_tables_are_shown(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of DuckDB and of ksqlDB; also two topics whose names differ in capital letters alone."""

    async def none(*_: Any, **__: Any) -> dict[str, pa.Table]:
        return {}

    monkeypatch.setattr(read_models, "fetch_read_models", none)
    for query in ("SHOW TABLES", "show all tables;", "LIST TOPICS"):
        found = dict(rows(query))
        assert [name for name in found if name.startswith('"')] == [f'"{name}"' for name in NAMES]
        assert found['"binary"'].endswith("_value, _value_bytes")
        assert found['"orders"'] == found['"Orders"'] == found['"binary"']
        assert [name for name in found if "_rows_of" in name] == []
        assert "channel_id" in found["feeds.insight_ingested"]


def test_a_plan_is_shown_without_reading_the_log(asked: list[str]) -> None:
    """A line a row, with the conditions that reach the log."""
    lines = rows("-- why so slow?\nexplain SELECT _key FROM orders WHERE _offset = 101")
    plan = "\n".join(line for (line,) in lines)
    assert (len(lines) > 3, "Arrow Scan" in plan, '"_offset" = 101' in plan) == (True, True, True), plan
    assert asked == ["topics"]


@pytest.mark.parametrize(
    "query",
    [
        "EXPLAIN ANALYZE SELECT 1",
        "EXPLAIN /* */ (ANALYZE) SELECT 1",
        "EXPLAIN ANALYZE INSERT INTO orders VALUES (1)",
        "EXPLAIN DROP VIEW orders",
        "EXPLAIN COPY (SELECT 1) TO '/tmp/stolen.csv'",
    ],
)
def test_only_the_plan_of_a_select_is_shown(asked: list[str], query: str) -> None:
    """Nothing that would run or change something."""
    with pytest.raises(InvalidQueryError, match="EXPLAIN shows the plan of one SELECT"):
        rows(query)


def test_a_name_that_is_nobodys_or_two_topics_is_refused(asked: list[str]) -> None:
    """In one line that names what may be meant."""
    for query, said in (
        ("FROM ordrs", "there is no table 'ordrs'; did you mean \"orders\""),
        ("FROM orders-v1.eu", 'the topic orders-v1.eu needs quotes: "orders-v1.eu"'),
        ("SELECT city FROM orders", "a field of the value is _value.city"),
        ("FROM binary", 'the topic binary needs quotes: "binary"'),
        ("SELECT offset, _key FROM orders", "the offset of a record is the column _offset"),
        ("SELECT 1; SELECT 2", "only one statement can be run at a time; this has 2"),
        (" ", "the query is empty"),
    ):
        with pytest.raises(InvalidQueryError) as refused:
            rows(query)
        assert said in str(refused.value)
    with pytest.raises(AmbiguousTopicError):
        rows("FROM ORDERS")


@pytest.mark.parametrize(
    "query", ["SELECT count(*) FROM orders", "SELECT count(*) FROM range(100000000000) AS t(i) WHERE i % 7 = 9"]
)
def test_ctrl_c_is_no_error_of_the_query(asked: list[str], monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    """In the reading of the log and in DuckDB's own work."""

    def read(table: Any, columns: list[str], condition: Any) -> Iterator[pa.RecordBatch]:
        while True:
            yield from Chosen(table._decoder, table._columns, columns, condition).of(batch(VALUES, topic="orders"))

    monkeypatch.setattr(TopicTable, "_read", read)
    timer = threading.Timer(0.3, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        rows(query)
    timer.join()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a"], ["a", "a_1", "a_2"]),
        (["a", "a", "a_1"], ["a", "a_2", "a_1"]),
        (["a_1", "a", "a"], ["a_1", "a", "a_2"]),
    ],
)
def test_two_columns_of_one_name_are_told_apart(names: list[str], expected: list[str]) -> None:
    """Those of a join, say: in a JSON object the first would be lost."""
    assert distinct_names(names) == expected


def test_no_column_of_a_join_is_lost(asked: list[str]) -> None:
    """In the description of the columns, in the batches, and in the schema of a file."""
    with evaluated("SELECT 1 AS a, 2 AS a", NOWHERE, Limits(9, 9)) as answer:
        assert [one["name"] for one in answer.columns] == answer.schema.names == ["a", "a_1"]
        assert [batch.to_pylist() for batch in answer.batches()] == [[{"a": 1, "a_1": 2}]]


def test_a_time_that_no_calendar_has_does_not_hide_the_others() -> None:
    """A record in microseconds is of the year 57,000: its time is shown in milliseconds, as `tail` shows it."""
    times = pa.array([1_700_000_000_000, 1_795_959_853_373_973, None], pa.timestamp("ms", tz="UTC"))
    (soon,), (far,), (none,) = rows_of(pa.record_batch([times], names=["at"]))
    assert (str(soon), far, none) == ("2023-11-14T22:13:20Z", 1_795_959_853_373_973, None)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT name, value FROM duckdb_settings()",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM duckdb_databases()",
        "SELECT * FROM duckdb_extensions()",
        "SELECT * FROM glob('*')",
    ],
)
def test_settings_and_errors_name_no_folder(query: str) -> None:
    """Neither the home of the one who runs it nor the folder where it runs."""
    try:
        shown = str(rows(query))
    except InvalidQueryError as error:
        shown = str(error)
    assert [folder for folder in (str(Path.home()), str(Path.cwd())) if folder in shown] == []
