"""The access and limits of a query over HTTP; routes and the dashboard begin queries here.

Invariant: topics and read models contain the data of all users, so only operators may query them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from highwater.api.core.access import Access, OwnedBy, Scope
from highwater.api.core.auth import Principal, Role
from highwater.api.core.errors import TooManyRequestsError, UnprocessableError
from highwater.api.core.services import Services
from highwater.connectors.postgres.pool import reading
from highwater.connectors.replay.searches import (
    BEGIN_SECONDS_MAX,
    RunningSearch,
    Searches,
    SearchRefusedError,
    TooManySearchesError,
)
from highwater.connectors.sql.catalogue import read_model_columns, topic_columns, topics_by_table
from highwater.connectors.sql.foreign_topics import (
    fetch_foreign_schemas,
    foreign_columns,
    foreign_names,
    listed_names,
    quoted_name,
)
from highwater.connectors.sql.query_task import Limits, QueryTask, Sources
from highwater.streams.identity.rate_limits import RateLimit

# A query may read a whole topic, and uses a process and its memory meanwhile.
QUERY = Access(Role.VIEWER, Scope.SYSTEM, OwnedBy.DEPLOYMENT, limit=RateLimit.PLAN, cost=5)
TABLES = Access(Role.VIEWER, Scope.SYSTEM, OwnedBy.DEPLOYMENT, limit=RateLimit.PLAN, cost=1)
QUERY_CHARACTERS_MAX = 20_000
ROWS_DEFAULT, ROWS_MAX, FILE_ROWS_MAX = 1_000, 10_000, 1_000_000
_SECONDS = 60.0
# Each process takes 150 MB more; with less memory, a query fails and nothing else does.
_MEMORY_MIB = 256
_RETRY_AFTER_SECONDS = 5

# The process reports a query that takes too long; this is for one that does not report anything.
_BEGIN_SECONDS_MAX = _SECONDS + BEGIN_SECONDS_MAX

_queries = Searches(
    "from highwater.connectors.sql.query_process import main; main()",
    at_once_max=3,
    of_caller_max=2,
    begin_seconds_max=_BEGIN_SECONDS_MAX,
)


@asynccontextmanager
async def begun(
    services: Services, principal: Principal, query: str, *, rows: int = ROWS_DEFAULT, kind: str | None = None
) -> AsyncIterator[RunningSearch]:
    """Yield a query that has begun; `kind` None: its rows as events, else a file of that format.

    Raises:
        UnprocessableError: it cannot be run.
        TooManyRequestsError: too many run.
        UnavailableError: Kafka, the registry or PostgreSQL does not answer.
    """
    settings = services.settings
    sources = Sources(settings.kafka_client(), settings.registry_access(), settings.database)
    task = QueryTask(query, sources, Limits(rows, _SECONDS, _MEMORY_MIB), kind)
    caller = (principal.key_id, principal.session_id, principal.user_id, principal.organization_id)
    try:
        async with _queries.open(task, caller) as running:
            yield running
    except SearchRefusedError as error:
        raise UnprocessableError(str(error), field="query") from error
    except TooManySearchesError as error:
        raise TooManyRequestsError(str(error), headers={"Retry-After": str(_RETRY_AFTER_SECONDS)}) from error


async def listed_tables(services: Services) -> dict[str, dict[str, str]]:
    """Return the columns of every table by name, with their types: topics of the catalogue, read models, topics of
    other applications.

    Raises:
        UnavailableError: PostgreSQL, Kafka or the registry does not answer.
    """
    tables = {name: topic_columns(topic) for name, topic in topics_by_table().items()}
    async with reading(services.database.require()) as connection:
        tables |= await read_model_columns(connection)
    others = listed_names(foreign_names(await services.admin.partition_counts()))
    schemas = await asyncio.to_thread(fetch_foreign_schemas, others, services.settings.registry_access())
    return tables | {quoted_name(name): foreign_columns(schema) for name, schema in schemas.items()}
