"""Parquet put together of the files of several processes is the file that one would have written."""

from __future__ import annotations

import io
import itertools
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.connectors.replay import parquet_file
from highwater.connectors.replay.row_groups import RowGroups
from highwater.connectors.replay.thrift import (
    BINARY,
    BYTE,
    DOUBLE,
    FALSE,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    Reader,
    written,
)
from highwater.connectors.replay.writers import FORMATS, part_writer
from tests.unit.replay.making import batch, decoder_of, encoded, insight, own_text


class Sent:
    """What a process writes: a list of files."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: Any) -> None:
        """Keep it."""
        self.pieces.append(bytes(data))


def parts_of(batches: list[Any]) -> list[bytes]:
    """The files that one process sends."""
    sent: Any = Sent()
    decoder = decoder_of()
    writer = part_writer("parquet", sent, decoder)
    for one in batches:
        writer.write(decoder.decode(one))
    writer.close()
    return list(sent.pieces)


def put_together(*parts: list[bytes]) -> bytes:
    """The file of several processes, whose pieces come in turns."""
    file = io.BytesIO()
    whole = RowGroups(file)
    whole.begin(parts[0][0])
    for piece in itertools.chain(*itertools.zip_longest(*(part[1:] for part in parts), fillvalue=b"")):
        if piece:
            whole.add(iter([piece[:10], piece[10:]]))
    whole.close()
    return file.getvalue()


def batches_of(begin: int, count: int) -> list[Any]:
    """Batches of 50 insights, some without a text, and one with a tombstone and garbage."""
    found = [
        batch([encoded(insight(text=f"{begin + i} {'x' * (i % 7)}" if i % 3 else None), own_text()) for i in range(50)])
        for _ in range(count)
    ]
    return [
        *found,
        batch([None, b"garbage", encoded(insight(text="last"), own_text())], headers=[None, [("a", b"1")], []]),
    ]


def alone(batches: list[Any]) -> bytes:
    """The file that one process writes."""
    file, decoder = io.BytesIO(), decoder_of()
    writer = FORMATS["parquet"](file, decoder)
    for one in batches:
        writer.write(decoder.decode(one))
    file.close = lambda: None  # type: ignore[method-assign]
    writer.close()
    return file.getvalue()


def test_row_groups_of_several_files_are_one_file(monkeypatch, tmp_path):
    """Read by Arrow, DuckDB and Polars: every row, the same schema, statistics that find rows in each row group."""
    monkeypatch.setattr(parquet_file, "_GROUP_ROWS", 100)
    mine, other = batches_of(0, 5), batches_of(1_000, 3)
    path = tmp_path / "f.parquet"
    path.write_bytes(put_together(parts_of(mine), parts_of(other)))
    expected = pq.read_table(io.BytesIO(alone([*mine, *other])))
    found = pq.read_table(path)
    assert found.schema.equals(expected.schema, check_metadata=True)
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.to_pylist()))
    meta = pq.read_metadata(path)
    assert (meta.num_rows, meta.num_row_groups) == (406, 5)
    assert sum(meta.row_group(i).num_rows for i in range(5)) == 406
    texts = f"SELECT count(*) FROM '{path}' WHERE value.text"
    assert duckdb.sql(f"{texts} = 'last'").fetchall() == [(2,)]
    assert (
        duckdb.sql(f"{texts} LIKE '10%'").fetchall() == duckdb.sql(f"{texts} >= '10' AND value.text < '11'").fetchall()
    )
    assert pl.read_parquet(path).height == 406
    assert [pq.ParquetFile(path).read_row_group(i).num_rows for i in range(5)] == [100, 100, 100, 53, 53]


def test_no_rows_at_all_are_a_file_too():
    """A condition that nothing meets."""
    found = pq.read_table(io.BytesIO(put_together(parts_of([]), parts_of([]))))
    assert (found.num_rows, found.schema) == (0, pq.read_table(io.BytesIO(alone([]))).schema)


@pytest.mark.parametrize("options", [{}, {"write_page_index": True}, {"use_dictionary": False}, {"version": "1.0"}])
def test_whatever_the_writer_notes_of_places_is_moved(options: dict[str, Any]):
    """Page indexes and dictionaries are found where they now stand."""
    files = []
    for begin in (0, 1_000, 2_000):
        made = io.BytesIO()
        table = pa.table({"n": np.arange(begin, begin + 500), "t": [f"{i % 9}" for i in range(500)]})
        pq.write_table(table, made, **options)
        files.append(made.getvalue())
    empty = io.BytesIO()
    pq.write_table(table.slice(0, 0), empty, **options)
    raw = put_together([empty.getvalue(), *files])
    assert pq.read_table(io.BytesIO(raw))["n"].to_pylist() == [*range(500), *range(1_000, 1_500), *range(2_000, 2_500)]
    assert pq.ParquetFile(io.BytesIO(raw)).read_row_group(2)["t"].to_pylist() == [f"{i % 9}" for i in range(500)]


VALUES = st.deferred(
    lambda: st.one_of(
        st.sampled_from([(TRUE, True), (FALSE, False)]),
        st.tuples(st.just(I16), st.integers(-(2**15), 2**15 - 1)),
        st.tuples(st.just(I32), st.integers(-(2**31), 2**31 - 1)),
        st.tuples(st.just(I64), st.integers(-(2**63), 2**63 - 1)),
        st.tuples(st.just(BINARY), st.binary(max_size=200)),
        st.tuples(st.just(DOUBLE), st.binary(min_size=8, max_size=8)),
        st.tuples(st.just(BYTE), st.binary(min_size=1, max_size=1)),
        st.tuples(st.just(LIST), st.tuples(st.just(I64), st.lists(st.integers(-5, 5), max_size=20))),
        st.tuples(st.just(LIST), st.tuples(st.just(TRUE), st.lists(st.integers(1, 2), max_size=20))),
        st.tuples(st.just(LIST), st.tuples(st.just(STRUCT), st.lists(STRUCTS, max_size=3))),
        st.tuples(st.just(STRUCT), STRUCTS),
    )
)
STRUCTS = st.dictionaries(st.integers(1, 60), VALUES, max_size=5)


@settings(deadline=None)
@given(STRUCTS)
def test_thrift_is_read_as_it_was_written(struct: dict[int, Any]):
    """Every type of the compact protocol that a footer may have, nested."""
    assert Reader(written(struct)).struct() == struct


def test_a_footer_comes_back_byte_by_byte():
    """What Arrow wrote and is not changed is the same again."""
    raw = alone(batches_of(0, 3))
    size = int.from_bytes(raw[-8:-4], "little")
    footer = raw[-8 - size : -8]
    assert written(Reader(footer).struct()) == footer
