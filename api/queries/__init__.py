"""Queries over HTTP and by command: submit, follow, show."""
