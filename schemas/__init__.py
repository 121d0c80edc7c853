"""The lowest layer: what every event is, where it lives and how it is written. No I/O."""
