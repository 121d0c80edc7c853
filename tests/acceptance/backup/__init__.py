"""Backups, and restoring them beside a log that went on."""
