"""Organizations, sessions and roles over HTTP."""
