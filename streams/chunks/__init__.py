"""Chunks: sources in parts, how ingests of them end, how they age, and how they are found."""
