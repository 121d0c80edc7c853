"""Decks as files: each module writes one format."""
