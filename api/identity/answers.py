"""The answers of the routes of organizations, sessions and roles, for the OpenAPI document.

Invariant: a member without a value is `None`. No answer has other members.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from highwater.api.core.answers import Time

# An enumeration rather than a constant: generated clients can then distinguish it from a number.
Unlimited: TypeAlias = Annotated[str, Field(json_schema_extra={"enum": ["unlimited"]})]


class OrganizationLimits(TypedDict):
    """The plan of an organization and its limits; `features` by name."""

    organization_id: str
    plan_name: str
    max_presentations_per_month: int | Unlimited
    ai_tokens_per_month: int | Unlimited
    max_file_size_mb: int
    storage_gb: int
    requests_per_minute: int
    features: dict[str, bool]
    subscription_status: str
    period_end: Time | None


class PlanChanged(TypedDict):
    """The new plan of an organization, and the position of the event."""

    organization_id: str
    plan: str
    positions: list[str]


class Session(TypedDict):
    """A session; its id is the bearer token, and is shown this once."""

    session_id: str
    user_id: str
    role: str
    organization_id: str
    email: str
    plan: str
    created_at: Time
    expires_at: Time


class SessionsRevoked(TypedDict):
    """How many sessions of a user were ended."""

    user_id: str
    revoked: int


class RoleChanged(TypedDict):
    """The new role of a user, the number of sessions it ended, and the position of the event."""

    user_id: str
    role: str
    revoked: int
    positions: list[str]
