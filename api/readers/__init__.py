"""Pages for readers."""
