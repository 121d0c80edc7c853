"""The HTTP API and the command."""
