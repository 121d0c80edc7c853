"""Prompts of the pipeline of queries: read, and changed by an admin (R1.11).

Invariant: a change is an event first, and every prompt there ever was is kept with its place in the log.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from highwater.api.core import conditional
from highwater.api.core.access import Scope, access
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.errors import NotFoundError
from highwater.api.core.guard import GuardedRoute
from highwater.api.core.paging import LIMIT_DEFAULT, Cursor, Limit, number_before, page_of
from highwater.api.core.publishing import Positions
from highwater.api.core.services import Wired
from highwater.api.queries.answers import PromptOfRole, Prompts
from highwater.connectors.queries import read_model as query_reads
from highwater.connectors.queries.read_model import PLACE_MAX, Prompt
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.queries import PROMPT_CHANGED
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.queries.validation import ROLES

PROMPT_TOPICS = frozenset({PROMPT_CHANGED})

router = APIRouter(tags=["queries"], route_class=GuardedRoute)


class NewPrompt(BaseModel):
    """A prompt. An inactive one leaves its role without a prompt, and the stage that needs it fails."""

    model_config = ConfigDict(extra="forbid", strict=True)
    prompt_template: str
    is_active: bool = True


def _document(prompt: Prompt) -> PromptOfRole:
    """A prompt; one of those that come with the product has no place in the log and no time."""
    return {
        "role_name": prompt.role,
        "prompt_template": prompt.template,
        "is_active": prompt.is_active,
        "position": prompt.position or None,
        "changed_at": iso_from_ms(prompt.changed_ms) if prompt.position else None,
    }


def _none_of(role: str) -> PromptOfRole:
    return {"role_name": role, "prompt_template": None, "is_active": False, "position": None, "changed_at": None}


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise NotFoundError(f"there is no role {role[:100]!r}; there are {', '.join(ROLES)}")


@router.get("/api/prompts", summary="List the active prompts (editor)", response_model=None, responses=answer(Prompts))
@access(Role.EDITOR, Scope.QUERIES, limit=RateLimit.CALLER, cost=1)
async def get_prompts(request: Request, services: Wired) -> Response:
    """One per role; a role may have none."""
    await services.fresh(request, PROMPT_TOPICS)
    found = {prompt.role: _document(prompt) for prompt in await query_reads.prompts(services.database.require())}
    return conditional.uncached({"prompts": [found.get(role) or _none_of(role) for role in ROLES]})


@router.get(
    "/api/prompts/{role:id}",
    summary="Get the prompt of a role (editor)",
    response_model=None,
    responses=answer(PromptOfRole),
)
@access(Role.EDITOR, Scope.QUERIES, limit=RateLimit.CALLER, cost=1)
async def get_prompt(
    request: Request,
    role: Annotated[str, Path(description="Analyzer, Assembler, Mentor or Archivist")],
    services: Wired,
    *,
    history: Annotated[bool, Query(description="also return other prompts of the role, newest first")] = False,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Response:
    """The active prompt; with `history` also the other prompts of the role, newest first, paged."""
    _check_role(role)
    await services.fresh(request, PROMPT_TOPICS)
    pool = services.database.require()
    active = next((prompt for prompt in await query_reads.prompts(pool) if prompt.role == role), None)
    document = _none_of(role) if active is None else _document(active)
    if history:
        found = await query_reads.prompt_history(pool, role, number_before(cursor, PLACE_MAX), limit + 1)
        page, next_cursor = page_of(found, limit, lambda prompt: (prompt.prompt_id,))
        document |= {"history": [_document(prompt) for prompt in page], "next_cursor": next_cursor}
    return conditional.uncached(document)


@router.put("/api/prompts/{role:id}", status_code=HTTPStatus.ACCEPTED, summary="Change the prompt of a role (admin)")
@access(Role.ADMIN, Scope.QUERIES, limit=RateLimit.CALLER, cost=1)
async def put_prompt(role: str, body: NewPrompt, services: Wired) -> Positions:
    """Stages that start from now on use it."""
    _check_role(role)
    event = {"role_name": role, **body.model_dump(), "ts": services.clock()}
    return Positions(positions=await services.publisher.one(PROMPT_CHANGED, event))
