"""Stores the history of metrics for a day."""
