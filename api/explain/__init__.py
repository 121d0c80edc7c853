"""Explanations of served resources, over HTTP and in a command."""
