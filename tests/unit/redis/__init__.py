"""Redis without a server."""
