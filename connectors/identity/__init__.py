"""Users and organizations: their plans, roles, sessions, limits and erasure."""
