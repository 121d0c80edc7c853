"""Backups of what only PostgreSQL and the registry hold, and restoring them beside the log that went on."""
