"""SQL over the log, without a broker."""
