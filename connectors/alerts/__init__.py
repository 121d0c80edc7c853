"""Alerts: people are told of failed runs."""
