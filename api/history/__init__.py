"""The history of figures over HTTP, and its recorder."""
