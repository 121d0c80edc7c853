"""Feeds: when a user is due, what is clustered, how it is described; pure except agents.py."""
