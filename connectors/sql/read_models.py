"""The read models of PostgreSQL as SQL tables: their list, and their rows at one moment.

Invariant: all tables in a query are from the same snapshot; a read model that is too large to be copied is refused,
never cut.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.csv as pacsv

from highwater.connectors.postgres.pool import Connection, open_pool, snapshot
from highwater.connectors.sql.catalogue import READ_MODELS
from highwater.schemas.errors import HighwaterError

# In memory there are about three copies: as text, as Arrow, and as DuckDB reads it.
ROWS_MAX, BYTES_MAX = 500_000, 64 << 20
_COPY_SECONDS_MAX = 30.0

# PostgreSQL's name of a type -> Arrow's; anything else is copied as text.
_TYPES = {
    "int4": pa.int32(), "int8": pa.int64(), "float8": pa.float64(), "bool": pa.bool_(), "text": pa.string(),
    "timestamptz": pa.timestamp("us", "UTC"),
}  # fmt: skip


class ReadModelTooLargeError(HighwaterError):
    """The read model has too many rows for SQL. Query the topic that it is built from instead, narrowed by `_timestamp`."""


async def fetch_read_models(url: str | None, names: Sequence[str], *, has_rows: bool = True) -> dict[str, pa.Table]:
    """Return the rows of these read models, by name; without `has_rows` only their columns.

    Raises:
        ReadModelTooLargeError: one has too many.
        UnavailableError: PostgreSQL does not answer.
    """
    pool = await open_pool(url, size_max=1)
    try:
        async with snapshot(pool) as connection:
            return {name: await _copied(connection, name, ROWS_MAX + 1 if has_rows else 0) for name in names}
    finally:
        await pool.close()


async def _copied(connection: Connection, name: str, rows_max: int) -> pa.Table:
    statement = READ_MODELS[name]
    columns = {
        one.name: _TYPES.get(one.type.name, pa.string())
        for one in (await connection.prepare(statement)).get_attributes()
    }
    text = io.BytesIO()

    async def hold(piece: bytes) -> None:
        text.write(piece)
        if text.tell() > BYTES_MAX:
            raise _too_large(name, f"{BYTES_MAX >> 20} MiB")

    await connection.copy_from_query(statement, rows_max, output=hold, format="csv", timeout=_COPY_SECONDS_MAX)
    table = _table(text.getvalue(), columns)
    if table.num_rows > ROWS_MAX:
        raise _too_large(name, f"{ROWS_MAX:,} rows")
    return table


def _too_large(name: str, limit: str) -> ReadModelTooLargeError:
    return ReadModelTooLargeError(
        f"{name} has more than {limit}, the most that SQL copies; read the topic that it is made of instead"
    )


def _table(text: bytes, columns: Mapping[str, pa.DataType]) -> pa.Table:
    """Parse rows as PostgreSQL writes them in CSV: an empty field is a null, empty quotes are an empty text."""
    schema = pa.schema(list(columns.items()))
    if not text:
        return schema.empty_table()
    return pacsv.read_csv(
        io.BytesIO(text),
        read_options=pacsv.ReadOptions(column_names=list(columns), use_threads=False),
        parse_options=pacsv.ParseOptions(newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(
            column_types=schema,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
            true_values=["t"],
            false_values=["f"],
        ),
    )
