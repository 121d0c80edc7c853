"""Chunks: stored, aged, given their vectors."""
