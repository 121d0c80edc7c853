"""Schemas over HTTP: the subjects of the registry, one with its versions, a comparison of two versions, and a check of
the next one.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from highwater.api.broker.access import READ
from highwater.api.broker.answers import ListedSchemas, RegisteredSchema, SchemaCheck, SchemaDiff
from highwater.api.broker.schemas import all_schemas, one_schema, schema_check, schema_diff
from highwater.api.broker.sources import Sources
from highwater.api.core.access import declared
from highwater.api.core.answers import answer
from highwater.api.core.errors import NotFoundError
from highwater.api.core.guard import Called, GuardedRoute
from highwater.api.core.openapi import problems
from highwater.api.core.services import Wired

router = APIRouter(tags=["broker"], route_class=GuardedRoute)

# The registry's own limit is 1 MB; the largest schema of the catalogue has 4 kB.
_SCHEMA_CHARACTERS_MAX = 200_000
_Version = Annotated[int | None, Query(ge=1, le=2**31 - 1)]


class SchemaCheckRequest(BaseModel):
    """A schema to check: its text, as it would be registered."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    text: str = Field(alias="schema", min_length=1, max_length=_SCHEMA_CHARACTERS_MAX)


@router.get(
    "/api/schemas", summary="List the subjects of the registry", response_model=None, responses=answer(ListedSchemas)
)
@declared(READ)
async def get_schemas(called: Called, services: Wired) -> ListedSchemas:
    """Lists every subject with its topic, also those that are not in the catalogue."""
    del called
    return {"schemas": await all_schemas(Sources.of(services))}


@router.get(
    "/api/schemas/{subject:id}",
    summary="Describe a schema",
    response_model=None,
    responses={**answer(RegisteredSchema), **problems(NotFoundError)},
)
@declared(READ)
async def get_schema(subject: str, called: Called, services: Wired) -> RegisteredSchema:
    """Describes a subject: compatibility level, and every version with its text."""
    del called
    return await one_schema(Sources.of(services), subject)


@router.get(
    "/api/schemas/{subject:id}/diff",
    summary="Compare two versions of a schema",
    response_model=None,
    responses={**answer(SchemaDiff), **problems(NotFoundError)},
)
@declared(READ)
async def get_schema_diff(
    subject: str,
    called: Called,
    services: Wired,
    before: Annotated[_Version, Query(alias="from", description="By default the version before `to`.")] = None,
    after: Annotated[_Version, Query(alias="to", description="By default the latest version.")] = None,
) -> SchemaDiff:
    """Shows which fields differ, and a unified diff of the formatted texts."""
    del called
    return await schema_diff(Sources.of(services), subject, before, after)


@router.post(
    "/api/schemas/{subject:id}/check",
    summary="Check a schema",
    response_model=None,
    responses={**answer(SchemaCheck), **problems(NotFoundError)},
)
@declared(READ)
async def post_schema_check(subject: str, body: SchemaCheckRequest, called: Called, services: Wired) -> SchemaCheck:
    """Shows whether the registry would accept this schema as the next version; nothing is registered."""
    del called
    return await schema_check(Sources.of(services), subject, body.text)
