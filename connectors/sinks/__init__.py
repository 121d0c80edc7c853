"""Sinks read the topics that outsiders write, and nothing else reads them: rows and outbox rows, once per event."""
