"""SQL over the log: topics and read models as tables."""
