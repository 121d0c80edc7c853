"""The process of a query, as far as what it writes: a file begins only once there is something that belongs to it."""

from __future__ import annotations

import io
import json

import pytest

from highwater.connectors.sql.query_process import _Run
from highwater.connectors.sql.query_task import InvalidQueryError, Limits, QueryTask, QueryTimeoutError, Sources

NOWHERE = Sources({}, None, None)
BROKEN = "SELECT word::INT AS number FROM (VALUES ('1'), ('two')) AS of_words(word)"
# More rows than DuckDB makes before the first is read; the last one is an error.
LATE = "SELECT CASE WHEN n = 299999 THEN error('late')::BIGINT ELSE n END AS n FROM range(300000) AS t(n)"
LONG = "SELECT repeat('x', CASE WHEN n = 299999 THEN 300000000 ELSE 1 END) FROM range(300000) AS t(n)"


def written(query: str, kind: str | None) -> tuple[dict[str, object], bytes]:
    """The first line, and what follows it."""
    output = io.BytesIO()
    _Run(QueryTask(query, NOWHERE, Limits(1_000_000, 30), kind), output).run()
    first, _, rest = output.getvalue().partition(b"\n")
    return json.loads(first), rest


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_file_that_cannot_begin_is_refused(kind: str) -> None:
    """A value that is not a number, found only when the query runs: the reason is sent, and no byte of a file."""
    first, rest = written(BROKEN, kind)
    assert (first["event"], first["reason"], rest) == ("refused", "invalid", b"")
    assert "Could not convert string 'two' to INT32" in str(first["detail"])


def test_a_column_that_parquet_does_not_hold_is_refused() -> None:
    """Before the file begins; with what helps."""
    first, rest = written("SELECT INTERVAL 1 HOUR AS span", "parquet")
    assert (first["event"], "cast it to VARCHAR" in str(first["detail"]), rest) == ("refused", True, b"")


@pytest.mark.parametrize(("kind", "head"), [("jsonl", b""), ("csv", b'"n"\n'), ("parquet", b"PAR1")])
def test_a_file_without_rows_is_whole(kind: str, head: bytes) -> None:
    """It has the head of its format."""
    first, rest = written("SELECT 1 AS n WHERE false", kind)
    assert (first["event"], rest[: len(head) or None]) == ("begin", head)


def test_a_file_that_has_begun_ends_with_the_error() -> None:
    """So its process fails, and the sent part is not a complete file."""
    output = io.BytesIO()
    with pytest.raises(InvalidQueryError, match="late"):
        _Run(QueryTask(LATE, NOWHERE, Limits(1_000_000, 30), "jsonl"), output).run()
    assert output.getvalue().startswith(b'{"event":"begin"')
    assert output.getvalue().count(b"\n") > 10_000


def test_rows_that_end_early_say_why() -> None:
    """As the last event, after the rows so far."""
    output = io.BytesIO()
    _Run(QueryTask(LATE, NOWHERE, Limits(1_000_000, 30)), output).run()
    last = json.loads(output.getvalue().splitlines()[-1])
    assert (last["event"], "late" in last["detail"]) == ("failed", True)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (LATE.replace("error('late')", "concat('two', n)"), "Could not convert string 'two299999' to INT64"),
        (LONG, "needs more memory than it may have"),
    ],
)
def test_an_error_among_the_rows_is_one_line(query: str, said: str) -> None:
    """Also where it comes with later rows, of which Arrow knows only the text."""
    with pytest.raises(InvalidQueryError, match=said) as refused:
        _Run(QueryTask(query, NOWHERE, Limits(1_000_000, 30, 100), "csv"), io.BytesIO()).run()
    assert "\n" not in str(refused.value)


def test_the_time_of_a_query_is_over_while_rows_are_read() -> None:
    """As before its first row."""
    query = "SELECT n FROM range(1000000000000) AS t(n)"
    with pytest.raises(QueryTimeoutError, match="did not end within"):
        _Run(QueryTask(query, NOWHERE, Limits(10**12, 0.3), "csv"), io.BytesIO()).run()
