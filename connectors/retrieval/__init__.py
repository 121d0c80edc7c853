"""Finds the chunks and insights that answer a question."""
