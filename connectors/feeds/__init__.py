"""Feeds: insights stored, subscribers told, clusters rebuilt, feed documents made."""
