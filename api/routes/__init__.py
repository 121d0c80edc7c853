"""The routes, one module a subsystem."""
