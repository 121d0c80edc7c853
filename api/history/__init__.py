"""The history of metrics over HTTP, and its recorder."""
