"""Chunks over HTTP and in commands: ingest, search, import."""
