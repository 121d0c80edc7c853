"""Declares the access to topics, groups and schemas; the dashboard decides by it which buttons it shows.

Invariant: topics, groups and schemas belong to the deployment, so only operators read them, and only an admin sets
offsets.
"""

from __future__ import annotations

from highwater.api.core.access import Access, OwnedBy, Scope
from highwater.api.core.auth import Role
from highwater.streams.identity.rate_limits import RateLimit

READ = Access(Role.VIEWER, Scope.SYSTEM, OwnedBy.DEPLOYMENT, limit=RateLimit.PLAN, cost=1)
RESET = Access(Role.ADMIN, Scope.SYSTEM, limit=RateLimit.PLAN, cost=1)
