"""Traces what is served back to the events that caused it."""
