"""Parquet of the rows that several processes send is the file that one would have written."""

from __future__ import annotations

import io
import itertools
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq

from highwater.connectors.replay import row_groups
from highwater.connectors.replay.row_groups import ParquetOfPieces
from highwater.connectors.replay.writers import FORMATS, part_writer
from tests.unit.replay.making import batch, decoder_of, encoded, insight, own_text


class Sent:
    """The bytes that a process writes, by piece."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._held = b""

    def write(self, data: Any) -> int:
        """Hold it until it is sent."""
        self._held += bytes(data)
        return len(data)

    def flush(self) -> None:
        """Nothing."""

    def writable(self) -> bool:
        """It is."""
        return True

    def send(self) -> None:
        """A piece, if there is anything."""
        if self._held:
            self.pieces.append(self._held)
        self._held = b""


def parts_of(batches: list[Any]) -> list[bytes]:
    """The pieces that one process sends."""
    sent: Any = Sent()
    decoder = decoder_of()
    writer = part_writer("parquet", sent, decoder)
    sent.send()
    for one in batches:
        writer.write(decoder.decode(one))
        sent.send()
    writer.close()
    sent.send()
    return list(sent.pieces)


def put_together(*parts: list[bytes]) -> bytes:
    """The file of several processes, whose pieces come in turns."""
    file = io.BytesIO()
    whole = ParquetOfPieces(file)
    whole.begin(parts[0][0])
    for piece in itertools.chain(*itertools.zip_longest(*(part[1:] for part in parts), fillvalue=b"")):
        if piece:
            whole.add(iter([piece[:10], piece[10:]]))
    file.close = lambda: None  # type: ignore[method-assign]
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


def test_rows_of_several_processes_are_one_file(monkeypatch, tmp_path):
    """Read by Arrow, DuckDB and Polars: every row, the same schema, statistics that find rows in each row group."""
    monkeypatch.setattr(row_groups, "GROUP_ROWS", 100)
    mine, other = batches_of(0, 5), batches_of(1_000, 3)
    path = tmp_path / "f.parquet"
    path.write_bytes(put_together(parts_of(mine), parts_of(other)))
    expected = pq.read_table(io.BytesIO(alone([*mine, *other])))
    found = pq.read_table(path)
    assert found.schema.equals(expected.schema, check_metadata=True)
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.to_pylist()))
    meta = pq.read_metadata(path)
    assert (meta.num_rows, meta.num_row_groups) == (406, 4)
    assert sum(meta.row_group(i).num_rows for i in range(4)) == 406
    texts = f"SELECT count(*) FROM '{path}' WHERE value.text"
    assert duckdb.sql(f"{texts} = 'last'").fetchall() == [(2,)]
    assert (
        duckdb.sql(f"{texts} LIKE '10%'").fetchall() == duckdb.sql(f"{texts} >= '10' AND value.text < '11'").fetchall()
    )
    assert pl.read_parquet(path).height == 406
    assert [pq.ParquetFile(path).read_row_group(i).num_rows for i in range(4)] == [100, 100, 100, 106]


def test_no_rows_at_all_are_a_file_too():
    """A condition that nothing meets."""
    found = pq.read_table(io.BytesIO(put_together(parts_of([]), parts_of([]))))
    assert (found.num_rows, found.schema) == (0, pq.read_table(io.BytesIO(alone([]))).schema)
