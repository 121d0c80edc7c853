"""Backups of what only PostgreSQL and the registry hold, and their restore together with the log, which continued."""
