"""Searches a topic over HTTP: a page of records as they are found, or all of them as a file.

Invariant: an answer that cannot be completed is cut off or reports an error; it never looks complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response

from highwater.api.core.access import declared
from highwater.api.core.auth import Principal
from highwater.api.core.conditional import CACHE_NEVER
from highwater.api.core.errors import NotFoundError
from highwater.api.core.guard import Called, GuardedRoute
from highwater.api.core.openapi import problems
from highwater.api.core.services import Services, Wired
from highwater.api.records.relaying import Relayed
from highwater.api.records.searches import (
    PAGE_RECORDS_DEFAULT,
    PAGE_RECORDS_MAX,
    SEARCH,
    begun,
    topic_named,
)
from highwater.connectors.replay.cursors import Search

router = APIRouter(tags=["records"], route_class=GuardedRoute)

# The limit of `connectors/replay/where.py`; a key or a cursor is shorter.
_CHARACTERS_MAX = 4_000
_CURSOR_CHARACTERS_MAX = 30_000
NDJSON = "application/x-ndjson"
MEDIA_TYPES = {"jsonl": NDJSON, "csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
_HEADERS = {"Cache-Control": CACHE_NEVER, "X-Accel-Buffering": "no"}
_PLACE = "An offset, `partition/offset`, a time (ISO 8601), an age such as `90m` or `7d`, `earliest` or `latest`."


@dataclass(frozen=True, slots=True)
class RecordParameters:
    """The parameters that select records."""

    begin: str | None
    end: str | None
    partition: int | None
    key: str | None
    condition: str | None
    words: str | None
    order: str

    def search(self, topic: str) -> Search:
        """Return the search of a topic.

        Raises:
            NotFoundError: there is no such topic.
        """
        is_newest_first = self.order == "newest"
        return Search(
            topic_named(topic),
            self.begin, self.end, self.partition, self.key, self.condition, self.words, is_newest_first,
        )  # fmt: skip


def _asked(
    begin: Annotated[str | None, Query(alias="from", max_length=_CHARACTERS_MAX, description=_PLACE)] = None,
    end: Annotated[
        str | None, Query(alias="to", max_length=_CHARACTERS_MAX, description=f"Not included. {_PLACE}")
    ] = None,
    partition: Annotated[int | None, Query(ge=0, le=999_999, description="Only this partition.")] = None,
    key: Annotated[
        str | None, Query(max_length=_CHARACTERS_MAX, description="Only this key, in any partition.")
    ] = None,
    where: Annotated[
        str | None,
        Query(min_length=1, max_length=_CHARACTERS_MAX, description="Only records that match this CEL expression."),
    ] = None,
    text: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=_CHARACTERS_MAX,
            description="Only records whose value contains this text, ignoring case.",
        ),
    ] = None,
    order: Annotated[Literal["newest", "oldest"], Query(description="Order by arrival time.")] = "newest",
) -> RecordParameters:
    return RecordParameters(begin, end, partition, key, where, text, order)


Wanted = Annotated[RecordParameters, Depends(_asked)]
Cursor = Annotated[
    str | None, Query(max_length=_CURSOR_CHARACTERS_MAX, description="Cursor of the previous page of the same search.")
]


@router.get(
    "/api/records/{topic:id}",
    summary="Search a topic, page by page",
    response_class=Response,
    responses={
        200: {
            "description": "JSON lines: `begin`, then `progress` and `record`, then `end` or `failed`.",
            "content": {NDJSON: {"schema": {"type": "string"}}},
        },
        **problems(NotFoundError),
    },
)
@declared(SEARCH)
async def get_records(
    topic: str,
    wanted: Wanted,
    called: Called,
    services: Wired,
    limit: Annotated[int, Query(ge=1, le=PAGE_RECORDS_MAX, description="Records per page.")] = PAGE_RECORDS_DEFAULT,
    cursor: Cursor = None,
) -> Response:
    """Streams matching records, in order over all partitions. `end` reports how much was read and where the next page starts."""
    search = begun(services, called.principal, wanted.search(topic), cursor=cursor, limit=limit)
    return Relayed(search, NDJSON, _HEADERS, has_first_line=True)


@router.get(
    "/api/records/{topic:id}/export",
    summary="Download all records that match a search",
    response_class=Response,
    responses={
        200: {"content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in MEDIA_TYPES.values()}},
        **problems(NotFoundError),
    },
)
@declared(SEARCH)
async def export_records(
    topic: str,
    wanted: Wanted,
    called: Called,
    services: Wired,
    kind: Annotated[Literal["jsonl", "csv", "parquet"], Query(alias="format")] = "jsonl",
    cursor: Cursor = None,
) -> Response:
    """Has the columns of `highwater replay`, ordered within each partition. An interrupted download is incomplete."""
    return exported(services, called.principal, wanted.search(topic), kind, cursor)


def exported(
    services: Services, principal: Principal, search: Search, kind: str, cursor: str | None = None
) -> Response:
    """Return the file of a search as a download; the dashboard's link uses it too.

    If the search cannot begin, it is a problem.
    """
    headers = {**_HEADERS, "Content-Disposition": f'attachment; filename="{search.topic.name}.{kind}"'}
    running = begun(services, principal, search, cursor=cursor, kind=kind)
    return Relayed(running, MEDIA_TYPES[kind], headers, has_first_line=False)
