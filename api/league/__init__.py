"""Leagues over HTTP and in the command: pages, matches, imports."""
