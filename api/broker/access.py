"""Owns what routes of topics, groups and schemas ask of their callers; the dashboard offers its buttons by the same.

Invariant: topics, groups and schemas are the deployment's, so operators alone read them, and an admin alone sets offsets.
"""

from __future__ import annotations

from highwater.api.core.access import Access, Scope, Whose
from highwater.api.core.auth import Role
from highwater.streams.identity.rate_limits import RateLimit

READ = Access(Role.VIEWER, Scope.SYSTEM, Whose.DEPLOYMENT, limit=RateLimit.PLAN, cost=1)
RESET = Access(Role.ADMIN, Scope.SYSTEM, limit=RateLimit.PLAN, cost=1)
