"""Queries over HTTP and in the command: asked, followed, told."""
