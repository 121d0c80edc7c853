"""Chunks over HTTP and in the command: ingested, searched, imported."""
