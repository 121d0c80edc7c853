"""Decisions about calls of models: retries, tokens, costs, valid answers."""
