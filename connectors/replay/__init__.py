"""Reads topics back: selected by offset, time or age, filtered, decoded, and written to a file or to another topic."""
