"""SQL over the log, over HTTP."""
