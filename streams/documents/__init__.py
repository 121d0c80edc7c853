"""What a document is before it is a chunk: its structure, and how it is cut."""
