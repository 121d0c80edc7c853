"""Leagues over HTTP and in commands: pages, matches, imports."""
