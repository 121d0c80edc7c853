"""Materializers keep Redis, which may be lost at any moment, in step with PostgreSQL, which may not."""
