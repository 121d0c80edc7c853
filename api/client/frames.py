"""Owns tables for analysts: columns with their types, returned as Arrow, pandas, polars or plain rows.

Invariant: a column has the type of the catalogue, also in a table without rows; columns outside the catalogue are kept,
with the type of their values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from highwater.schemas.envelope import ms_from_iso
from highwater.schemas.errors import HighwaterError
from highwater.streams.wording import counted

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

TIME = pa.timestamp("ms", "UTC")


class MissingLibraryError(HighwaterError):
    """A required library is not installed. Run `pip install 'highwater[notebook]'`."""


class Frame:
    """A table of results.

    Frames of read models also have their `version` (`X-Resource-Version`, which only grows) and the position of the
    event that last changed it, `caused_by`. Every tool that accepts Arrow's C stream can read a frame:
    `polars.DataFrame(frame)`, `pyarrow.table(frame)`, `duckdb.sql("select * from frame")`.
    """

    def __init__(self, table: pa.Table, *, version: int | None = None, caused_by: str | None = None) -> None:
        self._table = table
        self.version = version
        self.caused_by = caused_by

    def arrow(self) -> pa.Table:
        """Return a PyArrow table, without copying."""
        return self._table

    def pandas(self) -> pd.DataFrame:
        """Return a pandas DataFrame with Arrow types: integer columns with nulls stay integers, times stay in UTC.

        Raises:
            MissingLibraryError: pandas is not installed.
        """
        try:
            import pandas as pd  # noqa: PLC0415 - an optional dependency
        except ModuleNotFoundError as error:
            raise MissingLibraryError from error
        return self._table.to_pandas(types_mapper=pd.ArrowDtype)

    def polars(self) -> pl.DataFrame:
        """Return a polars DataFrame.

        Raises:
            MissingLibraryError: polars is not installed.
        """
        try:
            import polars as pl  # noqa: PLC0415 - an optional dependency
        except ModuleNotFoundError as error:
            raise MissingLibraryError from error
        return pl.DataFrame(self._table)

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per row."""
        found: list[dict[str, Any]] = self._table.to_pylist()
        return found

    def vectors(self, column: str = "embedding") -> NDArray[np.float32]:
        """Return a column of vectors (bytes, little-endian float32) as a matrix; rows without a vector are left out.

        Raises:
            ValueError: the vectors have different lengths.
        """
        raw = [value for value in self._table.column(column).to_pylist() if value]
        if len({len(value) for value in raw}) > 1:
            raise ValueError(f"the vectors of {column} are of different lengths; filter by embedding_model first")
        width = len(raw[0]) // 4 if raw else 0
        return np.frombuffer(b"".join(raw), "<f4").reshape(len(raw), width)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Implement the Arrow PyCapsule protocol."""
        return self._table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        of = "" if self.version is None else f" of version {self.version}"
        columns = ", ".join(f"{field.name}: {field.type}" for field in self._table.schema)
        return f"<Frame{of}: {counted(len(self), 'row')}; {columns}>"


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return JSON rows as a table: the columns of the schema, then other columns of the rows."""
    fields = {field.name: field.type for field in schema}
    known = {name: pa.array([_typed(row.get(name), kind) for row in rows], kind) for name, kind in fields.items()}
    further = dict.fromkeys(name for row in rows for name in row if name not in fields)
    return pa.table({**known, **{name: _guessed([row.get(name) for row in rows]) for name in further}})


def _typed(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, str) and pa.types.is_timestamp(kind):
        return ms_from_iso(value)
    return value


def _guessed(values: list[Any]) -> pa.Array:
    """Return a column outside the catalogue; values of mixed types are kept as JSON."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return pa.array([None if value is None else json.dumps(value) for value in values], pa.string())


def schema_of(**fields: pa.DataType) -> pa.Schema:
    """Return a schema from names and types."""
    return pa.schema(list(fields.items()))
