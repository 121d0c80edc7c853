"""Feeds: when a user's rebuild is due, what is clustered, how clusters are described; pure except agents.py."""
