"""Backups, and restoring them beside a log that has more events."""
