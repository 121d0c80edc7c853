"""Alerts: notify people of failed runs."""
