"""Feeds: when a user is due, what is clustered, how it is told; pure but for agents.py."""
