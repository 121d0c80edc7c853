"""Decisions about users and organizations: folds of their events, plans, rate limits."""
