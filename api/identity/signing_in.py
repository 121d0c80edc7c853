"""Creates a session for a person whom an OpenID provider identified.

Invariant. Its role is never above the one that the token gives, nor above the one stored for the user (R2.9).
"""

from __future__ import annotations

from highwater.api.core.auth import ROLES, Principal, Role
from highwater.api.core.services import Services
from highwater.connectors.identity.organizations import stored_plan_name
from highwater.connectors.identity.sessions import NewSession
from highwater.connectors.identity.statements import QUERIES
from highwater.connectors.postgres.pool import one_row, transaction

# Longer ones are not valid addresses (RFC 5321, section 4.5.3.1).
_EMAIL_CHARACTERS_MAX = 320


def session_role(of_token: Role, stored: str | None) -> Role:
    """Return the role of a session: the token's, limited by the one stored for the user."""
    return of_token if stored is None else of_token.shared(ROLES[stored])


async def open_session(services: Services, principal: Principal, email: str, ip: str) -> str:
    """Create the session, with the plan of its organization; return its token.

    Raises:
        UnavailableError: PostgreSQL or Redis does not answer.
    """
    user_id, organization_id = principal.user_id, principal.organization_id or ""
    assert user_id is not None  # a token names its user
    services.link.require()
    async with transaction(services.database.require()) as tx:
        await tx.execute(QUERIES["session_lock_shared"], user_id)
        rules = await one_row(tx, QUERIES["read_session_rules"], user_id)
        plan = await stored_plan_name(tx, organization_id)
        new = NewSession(user_id, organization_id, email[:_EMAIL_CHARACTERS_MAX], plan, ip)
        role = session_role(principal.role, rules["role"])
        token, _ = await services.sessions.create(tx, new, role.label, services.clock())
    return token
