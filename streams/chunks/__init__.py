"""Chunks: parts of sources, the ends of ingests, ageing, and search scores."""
