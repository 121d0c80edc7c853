"""Checks the plan of an organization before paid work (a job or a query) is accepted.

Invariant. A refusal names the limit: 402, or 403 if the organization is suspended (R2.33). The sink checks again, in
the order of the log, and its decision is final; if nothing is known here, it alone decides.
"""

from __future__ import annotations

from collections.abc import Collection

from highwater.api.core.errors import ForbiddenError, PaymentRequiredError
from highwater.api.core.services import Services
from highwater.schemas.errors import UnavailableError
from highwater.streams.identity.plans import Limit, Usage, refusal, refusal_text
from highwater.streams.jobs.args import Args
from highwater.streams.jobs.states import Kind


async def require_plan_allows(
    services: Services,
    organization_id: str,
    *,
    is_new_deck: bool = False,
    is_query: bool = False,
    documents: Collection[str] = (),
    features: Collection[str] = (),
) -> None:
    """Refuse work that the plan does not allow.

    Args:
        services: what is read from.
        organization_id: who pays.
        is_new_deck: whether it is a deck.
        is_query: whether it is a query.
        documents: hashes of the documents to be read, whose size is limited too.
        features: features that the plan must include.

    Raises:
        ForbiddenError: the organization is suspended.
        PaymentRequiredError: a limit of its plan is reached; named in `limit`.
    """
    try:
        found = await services.organizations.read_limits(organization_id)
        is_counted = is_new_deck or is_query or documents
        usage = (
            await services.organizations.usage(organization_id, documents, services.clock()) if is_counted else Usage()
        )
    except UnavailableError:
        return
    limit = refusal(found.plan, found.status, usage, is_new_deck=is_new_deck, is_query=is_query, features=features)
    if limit is None:
        return
    text = refusal_text(limit, organization_id, found.plan)
    if limit is Limit.SUSPENDED:
        raise ForbiddenError(text, limit=str(limit))
    raise PaymentRequiredError(text, limit=str(limit))


async def require_job_allowed(services: Services, organization_id: str, kind: str, args: Args) -> None:
    """Refuse a job that the organization may not have made; errors as of `require_plan_allows`."""
    await require_plan_allows(
        services,
        organization_id,
        is_new_deck=kind == Kind.GENERATION,
        documents=args.documents,
        features=args.features,
    )
