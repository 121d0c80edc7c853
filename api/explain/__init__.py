"""Why something is served as it is, over HTTP and in the command."""
