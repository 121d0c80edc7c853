"""SQL over the log, on a real broker."""
