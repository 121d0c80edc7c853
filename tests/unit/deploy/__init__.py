"""Decisions of the local stack, without a server."""
