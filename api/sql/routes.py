"""SQL over HTTP: a query's rows as they arrive, or all of them as a file; and the list of tables.

Invariant: a response that has begun and cannot be finished is cut off or reports an error; it never looks complete.
"""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from highwater.api.core.access import declared
from highwater.api.core.auth import Principal
from highwater.api.core.conditional import CACHE_NEVER
from highwater.api.core.guard import Called, GuardedRoute
from highwater.api.core.services import Services, Wired
from highwater.api.records.relaying import Relayed
from highwater.api.records.routes import MEDIA_TYPES, NDJSON
from highwater.api.sql.queries import (
    FILE_ROWS_MAX,
    QUERY,
    QUERY_CHARACTERS_MAX,
    ROWS_DEFAULT,
    ROWS_MAX,
    TABLES,
    begun,
    listed_tables,
)

router = APIRouter(tags=["records"], route_class=GuardedRoute)

_HEADERS = {"Cache-Control": CACHE_NEVER, "X-Accel-Buffering": "no"}
_EXAMPLE = (
    "SELECT channel_id, count(*) FROM feeds.insight_ingested WHERE _timestamp > now() - INTERVAL 1 HOUR GROUP BY ALL"
)


class SqlQuery(BaseModel):
    """One SELECT."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(
        min_length=1, max_length=QUERY_CHARACTERS_MAX, description="One SELECT in DuckDB's SQL.", examples=[_EXAMPLE]
    )
    limit: int = Field(
        ROWS_DEFAULT, ge=1, le=ROWS_MAX, description="Maximum number of rows; `end` reports if there are more."
    )


class SqlExport(BaseModel):
    """One SELECT, and the format of its file."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(
        min_length=1, max_length=QUERY_CHARACTERS_MAX, description="One SELECT in DuckDB's SQL.", examples=[_EXAMPLE]
    )
    format: Literal["jsonl", "csv", "parquet"] = "jsonl"


class SqlColumn(BaseModel):
    """A column of a table."""

    name: str
    type: str = Field(description="DuckDB's type; of a structure only that it is one.")


class SqlTable(BaseModel):
    """A table that queries may name."""

    name: str = Field(
        description="The name as a query writes it; of a topic that is not in the catalogue, in quotes.",
        examples=["feeds.insight_ingested"],
    )
    columns: list[SqlColumn]


class SqlTables(BaseModel):
    """All tables."""

    tables: list[SqlTable]


@router.post(
    "/api/sql",
    summary="Query topics and read models",
    response_class=Response,
    responses={
        200: {
            "description": "Lines of JSON: `begin` with the columns, `progress` and `row` as they come, and `end` or `failed`.",
            "content": {NDJSON: {"schema": {"type": "string"}}},
        }
    },
)
@declared(QUERY)
async def query_log(body: SqlQuery, called: Called, services: Wired) -> Response:
    """Runs one SELECT. Conditions on `_timestamp`, `_partition` and `_offset` decide how much of the log is read."""
    running = begun(services, called.principal, body.query, rows=body.limit)
    return Relayed(running, NDJSON, _HEADERS, has_first_line=True)


@router.post(
    "/api/sql/export",
    summary="Download the answer of a query",
    response_class=Response,
    responses={
        200: {"content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in MEDIA_TYPES.values()}}
    },
)
@declared(QUERY)
async def export_query(body: SqlExport, called: Called, services: Wired) -> Response:
    """Returns up to a million rows. An interrupted download is incomplete."""
    return exported(services, called.principal, body.query, body.format)


@router.get("/api/sql/tables", summary="List the tables that queries may name")
@declared(TABLES)
async def get_sql_tables(called: Called, services: Wired) -> SqlTables:
    """Lists topics, dead letters and read models with their columns, and topics that are not in the catalogue."""
    del called
    tables = await listed_tables(services)
    return SqlTables(
        tables=[
            SqlTable(name=name, columns=[SqlColumn(name=one, type=kind) for one, kind in columns.items()])
            for name, columns in tables.items()
        ]
    )


def exported(services: Services, principal: Principal, query: str, kind: str) -> Response:
    """Return the file of a query, as a download; it also answers the dashboard's link.

    If the query cannot begin, it is a problem.
    """
    headers = {**_HEADERS, "Content-Disposition": f'attachment; filename="query.{kind}"'}
    running = begun(services, principal, query, rows=FILE_ROWS_MAX, kind=kind)
    return Relayed(running, MEDIA_TYPES[kind], headers, has_first_line=False)
