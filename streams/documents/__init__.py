"""A document before it is chunks: its structure, and how it is cut."""
