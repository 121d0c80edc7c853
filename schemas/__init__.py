"""The lowest layer: events, topics and their encoding. No I/O."""
